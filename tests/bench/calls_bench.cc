// Seconds of single calls of the CPU device, one answer for each line that is read, so that a peer
// in another process can take turns. A line is `threads case sizes`:
//
//   2 forward N D causal f32|bf16     B 1, H 8; causal 0 or 1
//   2 backward N D causal f32|bf16
//   1 matmul batch M N K
//   1 fft N M
#include <iostream>
#include <map>
#include <sstream>
#include <string>

#include "kernels/cpu/cpu.h"
#include "tests/bench/attend_problem.h"
#include "tests/bench/attend_sampler.h"
#include "tests/bench/measure.h"

namespace attnd {
namespace {

using Call = std::function<DeviceStatus(Device&, Stream&)>;

Floats Numbers(int64_t count) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  Floats numbers(static_cast<size_t>(count));
  for (float& x : numbers) x = uniform(random);
  return numbers;
}

Call Attention(std::istream& sizes, bool backward) {
  int64_t N = 0, D = 0;
  bool causal = false;
  std::string dtype;
  sizes >> N >> D >> causal >> dtype;
  BenchSizes s = {.Nq = N, .Nk = N, .D = D, .gradients = true};
  if (dtype == "bf16") s.dtype = DType::kBF16;
  if (causal) s.pattern = BandPattern(N, kUnbounded, 0);
  auto bench = std::make_shared<BenchProblem>(s);
  if (!backward) {
    return [bench](Device& device, Stream& stream) {
      const AttendProblem p = bench->Forward();
      return device.Run(stream, AttendArgs{.params = bench->params(), .problems = {p}});
    };
  }
  // The gradient needs what a forward wrote.
  auto ready = std::make_shared<bool>(false);
  return [bench, ready](Device& device, Stream& stream) {
    const AttendGradProblem p = bench->Backward();
    if (!*ready) {
      *ready = true;
      const DeviceStatus status =
          device.Run(stream, AttendArgs{.params = bench->params(), .problems = {p.forward}});
      if (!status.ok()) return status;
    }
    return device.Run(stream, AttendGradArgs{.params = bench->params(), .problems = {p}});
  };
}

Call Product(std::istream& sizes) {
  int64_t batch = 0, M = 0, N = 0, K = 0;
  sizes >> batch >> M >> N >> K;
  struct Arrays {
    Floats a, b, out;
  };
  auto arrays = std::make_shared<Arrays>();
  *arrays = {Numbers(batch * M * K), Numbers(batch * K * N), Numbers(batch * M * N)};
  return [=](Device& device, Stream& stream) {
    const MatMulProblem p = {.a = DenseView(arrays->a.data(), DType::kF32, Shape{batch, M, K}),
                             .b = DenseView(arrays->b.data(), DType::kF32, Shape{batch, K, N}),
                             .out = DenseView(arrays->out.data(), DType::kF32, Shape{batch, M, N})};
    return device.Run(stream, MatMulArgs{.problems = {p}});
  };
}

Call Transform(std::istream& sizes) {
  int64_t N = 0, M = 0;
  sizes >> N >> M;
  auto x = std::make_shared<Floats>(Numbers(N * M));
  auto out = std::make_shared<Floats>(Numbers(N * M));
  return [=](Device& device, Stream& stream) {
    const FftProblem p = {DenseView(x->data(), DType::kF32, Shape{1, 1, N, M}),
                          DenseView(out->data(), DType::kF32, Shape{1, 1, N, M})};
    return device.Run(stream, FftArgs{.problems = {p}});
  };
}

Call Make(const std::string& what, std::istream& sizes) {
  if (what == "forward" || what == "backward") return Attention(sizes, what == "backward");
  if (what == "matmul") return Product(sizes);
  if (what == "fft") return Transform(sizes);
  return [what](Device&, Stream&) {
    return DeviceStatus(DeviceStatus::Code::kFailed, "no case " + what);
  };
}

double Seconds(const Call& call, Device& device, Stream& stream) {
  const double start = Wall();
  int calls = 0;
  do {
    const DeviceStatus status = call(device, stream);
    if (!status.ok()) {
      std::cerr << status.text() << "\n";
      std::exit(1);
    }
    ++calls;
  } while (Wall() - start < 1e-3);
  return (Wall() - start) / calls;
}

int Main() {
  std::map<int, std::unique_ptr<Device>> devices;
  BufferPool pool;
  std::string line, last;
  Call call;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    int threads = 1;
    std::string what;
    words >> threads >> what;
    std::unique_ptr<Device>& device = devices[threads];
    if (device == nullptr) device = *NewCpuDevice({.threads = threads});
    Stream stream(*device, &pool);
    if (line != last) {
      call = Make(what, words);
      Seconds(call, *device, stream);
      last = line;
    }
    std::cout << Seconds(call, *device, stream) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace attnd

int main() { return attnd::Main(); }
