// Speed of kernels on a CUDA device: one JSON object a line (case, libraries, seconds, tflops, gbps
// of ideal traffic) after one of the device. Medians of repeated launches of one stream, arrays in
// device memory.
// tests/gpu/run puts PyTorch's figures of the same machine beside them.
//
//   cuda_bench [--own] [--after CASE] [part of a name]
//     --own: own kernels alone, without NVIDIA's libraries. --after: the cases that follow CASE.
//   A case that fails ends it with a line of the case and exit code 3: the device may be lost.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/cuda/cuda.h"
#include "kernels/device/host_launch.h"
#include "tests/bench/attend_problem.h"
#include "tests/gpu/bench_case.h"

namespace attnd {
namespace {

const char* current_case = "";  // named where it fails

void Check(const DeviceStatus& status) {
  if (status.ok()) return;
  std::printf("{\"case\": \"%s\", \"failed\": true}\n", current_case);
  std::fflush(stdout);
  std::fprintf(stderr, "cuda_bench: %s: %s\n", current_case, status.text().c_str());
  std::_Exit(3);
}

std::vector<std::vector<char>>& Arrays() {
  static auto& arrays = *new std::vector<std::vector<char>>();
  return arrays;
}

double Seconds(Device& device, Stream& stream, const Launch& launch, int times) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i) Check(device.Run(stream, launch));
  Check(stream.Wait());
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  return taken.count() / times;
}

void AddAttend(std::vector<BenchCase>* cases, const std::string& name, BenchSizes sizes) {
  sizes.gradients = true;
  // Kept until the case ends: the launch points into it. Its gradient is that of its own forward.
  const auto problem = [sizes, kept = std::make_shared<std::shared_ptr<BenchProblem>>()] {
    *kept = std::make_shared<BenchProblem>(sizes);
    return *kept;
  };
  const double pairs = sizes.pattern == nullptr ? static_cast<double>(sizes.Nq) * sizes.Nk
                                                : static_cast<double>(sizes.pattern->visible_pairs);
  const double flops = 4 * pairs * static_cast<double>(sizes.H * sizes.D);
  cases->push_back({"attend forward " + name, flops, [problem]() -> Launch {
                      const auto p = problem();
                      return AttendArgs{p->params(), {p->Forward()}};
                    }});
  cases->push_back({"attend backward " + name, 2.5 * flops, [problem]() -> Launch {
                      const auto p = problem();
                      return AttendGradArgs{p->params(), {p->Backward()}};
                    }});
  if (sizes.dtype != DType::kBF16) return;
  // A library may serve it.
  cases->push_back({"attend backward in any order " + name, 2.5 * flops, [problem]() -> Launch {
                      const auto p = problem();
                      return AttendGradArgs{.params = p->params(),
                                            .problems = {p->Backward()},
                                            .is_deterministic = false};
                    }});
}

std::vector<BenchCase> Cases() {
  std::vector<BenchCase> cases;
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
      // Linear attention should be as fast from here on.
      BenchSizes shorter = {.H = 64, .Hkv = 64, .Nq = 2048, .Nk = 2048, .D = D, .dtype = dtype};
      shorter.pattern = BandPattern(2048, kUnbounded, 0);
      AddAttend(&cases, "causal bfloat16 D64 N2048 BH64", shorter);
      sizes.pattern = BandPattern(N, -255, 0);
      AddAttend(&cases, "window 256 " + shape, sizes);
      sizes.pattern = RandomTiles(N, 0.1);
      AddAttend(&cases, "density 0.1 " + shape, sizes);
    }
  }
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    constexpr int64_t kN = 4096;
    cases.push_back(
        {std::string("matmul 4096 ") + Name(dtype), 2.0 * kN * kN * kN, [dtype]() -> Launch {
           const Shape shape = {1, 1, kN, kN};
           return MatMulArgs{.problems = {{.a = NewArray(dtype, shape),
                                           .b = NewArray(dtype, shape),
                                           .out = NewArray(dtype, shape)}}};
         }});
  }
  for (BenchCase& row : RowCases()) cases.push_back(std::move(row));
  return cases;
}

// Every given array of a launch moves once.
double IdealBytes(const Launch& launch) {
  double bytes = 0;
  ForEachView(launch, [&](const View& view) {
    if (view.given()) bytes += static_cast<double>(view.shape.size() * SizeOf(view.dtype));
  });
  return bytes;
}

// What the gradient reads of the forward.
void RunForward(Device& device, Stream& stream, const Launch& launch) {
  const auto* grad = std::get_if<AttendGradArgs>(&launch);
  if (grad == nullptr) return;
  AttendArgs args{.params = grad->params, .problems = {}};
  for (const AttendGradProblem& problem : grad->problems) args.problems.push_back(problem.forward);
  Check(device.Run(stream, args));
}

// By name, but for parts of one that CudaLibraryOf counts with the rest.
constexpr const char* kLibraries[] = {"cuBLASLt", "cuDNN", "cuFFT"};

int64_t LibraryCalls(const Device& device) {
  int64_t calls = 0;
  for (const char* name : kLibraries) calls += CudaLibraryOf(device, name).calls;
  return calls;
}

void Measure(Device& device, const BenchCase& c) {
  current_case = c.name.c_str();
  const int64_t calls = LibraryCalls(device);
  Stream stream(device, &device.memory());
  Launch launch = c.launch();
  const double bytes = IdealBytes(launch);
  std::vector<HostStretch> memory;
  Check(MoveToDevice(stream, &launch, &memory));
  Check(stream.Wait());
  ForgetArrays();
  RunForward(device, stream, launch);
  Seconds(device, stream, launch, 1);
  const double first = Seconds(device, stream, launch, 2);
  const int times = std::clamp(static_cast<int>(0.02 / first), 1, 200);
  std::vector<double> samples;
  for (int i = 0; i < 7; ++i) samples.push_back(Seconds(device, stream, launch, times));
  std::sort(samples.begin(), samples.end());
  std::printf(
      "{\"case\": \"%s\", \"libraries\": %s, \"seconds\": %.6g, \"tflops\": %.5g, \"gbps\": "
      "%.5g}\n",
      c.name.c_str(), LibraryCalls(device) > calls ? "true" : "false", samples[3],
      c.flops / samples[3] * 1e-12, bytes / samples[3] * 1e-9);
  std::fflush(stdout);
}

struct Arguments {
  bool own = false;
  std::string after, part;
};

int Main(const Arguments& arguments) {
  CudaOptions options{.devices = {0}, .warn = [](const std::string& line) {
                        std::fprintf(stderr, "cuda_bench: %s\n", line.c_str());
                      }};
  if (arguments.own)
    options.unused_libraries = {"cuBLASLt", "cuDNN", "cuDNN in bands", "cuDNN gradients", "cuFFT"};
  CudaDevices found = NewCudaDevices(options);
  if (found.devices.empty()) {
    std::printf("skipped: no CUDA device (%s)\n", found.why_not.c_str());
    return 0;
  }
  const DeviceInfo& info = found.devices[0]->info();
  std::printf("{\"device\": \"%s\", \"tflops\": %.5g, \"gbps\": %.5g}\n", info.description.c_str(),
              info.peak_flops * 1e-12, info.bytes_per_second * 1e-9);
  for (const char* name : kLibraries) {
    const CudaLibrary library = CudaLibraryOf(*found.devices[0], name);
    if (!library.why_not.empty()) std::fprintf(stderr, "cuda_bench: %s\n", library.why_not.c_str());
  }
  bool is_due = arguments.after.empty();
  for (const BenchCase& c : Cases()) {
    // Own gradients are the same in any order.
    const bool is_left_out = arguments.own && c.name.find("in any order") != std::string::npos;
    const bool is_asked = c.name.find(arguments.part) != std::string::npos;
    if (is_due && is_asked && !is_left_out) Measure(*found.devices[0], c);
    is_due = is_due || c.name == arguments.after;
  }
  current_case = "copies";
  if (std::string_view(current_case).find(arguments.part) != std::string_view::npos) {
    MeasureCopies(*found.devices[0], arguments.own ? "false" : "true");
  }
  return 0;
}

}  // namespace

View NewArray(DType dtype, const Shape& shape) {
  auto& bytes = Arrays().emplace_back(static_cast<size_t>(shape.size() * SizeOf(dtype)));
  const View view = DenseView(bytes.data(), dtype, shape);
  std::minstd_rand random(static_cast<unsigned>(Arrays().size()));
  for (int64_t i = 0; i < shape.size(); ++i) {
    if (dtype == DType::kBF16) {
      view.As<uint16_t>()[i] = static_cast<uint16_t>(0x3C00 + random() % 256);
    } else {
      view.As<float>()[i] = static_cast<float>(random() % 2048) / 1024 - 1;
    }
  }
  return view;
}

View NewShuffled(int64_t rows) {
  const View view = NewArray(DType::kI32, {rows});
  std::iota(view.As<int32_t>(), view.As<int32_t>() + rows, 0);
  std::shuffle(view.As<int32_t>(), view.As<int32_t>() + rows, std::minstd_rand(1));
  return view;
}

void ForgetArrays() { Arrays().clear(); }

}  // namespace attnd

int main(int argc, char** argv) {
  attnd::Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--own") {
      arguments.own = true;
    } else if (argument == "--after" && i + 1 < argc) {
      arguments.after = argv[++i];
    } else {
      arguments.part = argument;
    }
  }
  return attnd::Main(arguments);
}
