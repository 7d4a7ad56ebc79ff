// Speed of kernels on a CUDA device: one JSON object a line (case, seconds, tflops or gbps).
// Medians of repeated launches of one stream, arrays in device memory. tests/gpu/run puts PyTorch's
// figures of the same machine beside them. Usage: cuda_bench [part of a name]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/cuda.h"
#include "kernels/device/host_launch.h"
#include "tests/bench/attend_problem.h"

namespace attnd {
namespace {

struct Case {
  std::string name;
  double flops = 0, bytes = 0;  // credited; ideal traffic
  std::function<Launch()> launch;
};

void Check(const DeviceStatus& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "cuda_bench: %s\n", status.text().c_str());
  std::exit(1);
}

double Seconds(Device& device, Stream& stream, const Launch& launch, int times) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i) Check(device.Run(stream, launch));
  Check(stream.Wait());
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  return taken.count() / times;
}

// Random [B,H,N,D] arrays that live as long as the process.
View NewArray(DType dtype, const Shape& shape) {
  static auto& memory = *new std::vector<std::vector<char>>();
  auto& bytes = memory.emplace_back(static_cast<size_t>(shape.size() * SizeOf(dtype)));
  const View view = DenseView(bytes.data(), dtype, shape);
  std::minstd_rand random(static_cast<unsigned>(memory.size()));
  for (int64_t i = 0; i < shape.size(); ++i) {
    if (dtype == DType::kF32) {
      view.As<float>()[i] = static_cast<float>(random() % 2048) / 1024 - 1;
    } else {
      view.As<uint16_t>()[i] = static_cast<uint16_t>(0x3C00 + random() % 256);
    }
  }
  return view;
}

void AddAttend(std::vector<Case>* cases, const std::string& name, BenchSizes sizes) {
  sizes.gradients = true;
  // Made when its turn comes, and kept: the launch points into it.
  const auto problem = [sizes] {
    static auto& kept = *new std::vector<std::shared_ptr<BenchProblem>>();
    kept.assign(1, std::make_shared<BenchProblem>(sizes));
    return kept[0];
  };
  const double pairs = sizes.pattern == nullptr ? static_cast<double>(sizes.Nq) * sizes.Nk
                                                : static_cast<double>(sizes.pattern->visible_pairs);
  const double flops = 4 * pairs * static_cast<double>(sizes.H * sizes.D);
  cases->push_back({"attend forward " + name, flops, 0, [problem]() -> Launch {
                      const auto p = problem();
                      return AttendArgs{p->params(), {p->Forward()}};
                    }});
  cases->push_back({"attend backward " + name, 2.5 * flops, 0, [problem]() -> Launch {
                      const auto p = problem();
                      return AttendGradArgs{p->params(), {p->Backward()}};
                    }});
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const std::string type = Name(dtype);
    for (const int64_t D : {64, 128}) {
      const int64_t N = dtype == DType::kF32 ? 2048 : 4096;
      const std::string shape =
          type + " D" + std::to_string(D) + " N" + std::to_string(N) + " BH64";
      BenchSizes sizes = {.H = 64, .Hkv = 64, .Nq = N, .Nk = N, .D = D, .dtype = dtype};
      AddAttend(&cases, shape, sizes);
      sizes.pattern = BandPattern(N, kUnbounded, 0);
      AddAttend(&cases, "causal " + shape, sizes);
      if (dtype == DType::kF32 || D == 128) continue;
      sizes.pattern = BandPattern(N, -255, 0);
      AddAttend(&cases, "window 256 " + shape, sizes);
      sizes.pattern = RandomTiles(N, 0.1);
      AddAttend(&cases, "density 0.1 " + shape, sizes);
    }
  }
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    constexpr int64_t kN = 4096;
    cases.push_back(
        {std::string("matmul 4096 ") + Name(dtype), 2.0 * kN * kN * kN, 0, [dtype]() -> Launch {
           const Shape shape = {1, 1, kN, kN};
           return MatMulArgs{.problems = {{.a = NewArray(dtype, shape),
                                           .b = NewArray(dtype, shape),
                                           .out = NewArray(dtype, shape)}}};
         }});
    const double rows = 16.0 * 8192 * 64 * SizeOf(dtype);
    cases.push_back({std::string("scan causal N8192 D64 H16 ") + Name(dtype),
                     16 * 8192 * 64 * 64 * 4.0, 4 * rows, [dtype]() -> Launch {
                       const Shape shape = {1, 16, 8192, 64};
                       ScanProblem p{.q = NewArray(dtype, shape),
                                     .k = NewArray(dtype, shape),
                                     .v = NewArray(dtype, shape),
                                     .out = NewArray(dtype, shape)};
                       p.seqs = {{.nq = 8192, .nk = 8192, .offset = 0}};
                       return ScanArgs{.params = {.causal = true}, .problems = {p}};
                     }});
  }
  cases.push_back({"add 64M float32", 0, 3.0 * 4 * (int64_t{64} << 20), []() -> Launch {
                     const Shape shape = {1, 64, 1 << 10, 1 << 10};
                     return ElementwiseArgs{.op = ElementOp::kAdd,
                                            .problems = {{.a = NewArray(DType::kF32, shape),
                                                          .b = NewArray(DType::kF32, shape),
                                                          .out = NewArray(DType::kF32, shape)}}};
                   }});
  return cases;
}

int Main(const char* part) {
  CudaDevices found = NewCudaDevices({.devices = {0}});
  if (found.devices.empty()) {
    std::printf("skipped: no CUDA device (%s)\n", found.why_not.c_str());
    return 0;
  }
  Device& device = *found.devices[0];
  for (const Case& c : Cases()) {
    if (c.name.find(part) == std::string::npos) continue;
    Stream stream(device, &device.memory());
    Launch launch = c.launch();
    std::vector<HostStretch> memory;
    Check(MoveToDevice(stream, &launch, &memory));
    Check(stream.Wait());
    const double first = Seconds(device, stream, launch, 2);
    const int times = std::clamp(static_cast<int>(0.02 / first), 1, 200);
    std::vector<double> samples;
    for (int i = 0; i < 7; ++i) samples.push_back(Seconds(device, stream, launch, times));
    std::sort(samples.begin(), samples.end());
    std::printf("{\"case\": \"%s\", \"seconds\": %.6g, \"tflops\": %.5g, \"gbps\": %.5g}\n",
                c.name.c_str(), samples[3], c.flops / samples[3] * 1e-12,
                c.bytes / samples[3] * 1e-9);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace attnd

int main(int argc, char** argv) { return attnd::Main(argc > 1 ? argv[1] : ""); }
