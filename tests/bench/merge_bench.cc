// Speed of merge against copying the same bytes with the same threads in the same run (the bound: P
// parts read, one result written; backward all parts and out, dout read, P gradients written). One
// JSON object a line: case, value (GB/s), peak (GB/s of the copy), ratio. Usage: merge_bench
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/bench/measure.h"

namespace attnd {
namespace {

double SecondsOf(const std::function<void()>& call) {
  const double start = Wall();
  call();
  return Wall() - start;
}

// P parts of N rows of Dv numbers, forward and backward.
class Bench {
 public:
  Bench(size_t parts, int64_t N, int64_t Dv, DType dtype) : N_(N), Dv_(Dv), dtype_(dtype) {
    for (size_t p = 0; p < 2 * parts; ++p) {
      std::vector<MergePart>& side = p < parts ? parts_ : dparts_;
      side.push_back({Rows(dtype), Numbers()});
    }
    problem_ = {parts_, Rows(dtype), Numbers()};
    grad_ = {problem_, Rows(dtype), Numbers(), dparts_};
  }

  void Run(CpuDevice& device, const std::string& name) {
    BufferPool pool;
    Stream stream(device, &pool);
    const double row = static_cast<double>(N_ * Dv_ * SizeOf(dtype_));
    const double P = static_cast<double>(parts_.size());
    Report(device, name + " forward", (P + 1) * row,
           [&] { (void)device.Run(stream, MergeArgs{.problems = {problem_}}).ok(); });
    Report(device, name + " backward", (2 * P + 2) * row,
           [&] { (void)device.Run(stream, MergeGradArgs{.problems = {grad_}}).ok(); });
  }

 private:
  View Take(DType dtype, const Shape& shape) {
    memory_.emplace_back(static_cast<size_t>(shape.size() * SizeOf(dtype)));
    return DenseView(memory_.back().data(), dtype, shape);
  }
  View Rows(DType dtype) { return Take(dtype, {1, 1, N_, Dv_}); }
  View Numbers() { return Take(DType::kF32, {1, 1, N_}); }

  // In turns with a copy that moves as many bytes.
  void Report(CpuDevice& device, const std::string& name, double bytes,
              const std::function<void()>& call) {
    const int threads = device.cpu().threads;
    const auto share = static_cast<size_t>(bytes / 2 / threads);
    std::vector<std::byte> from(share * threads), to(share * threads);
    const auto copy = [&] {
      device.cpu().pool->ParallelFor(threads, true, [&](int64_t i, int) {
        std::memcpy(to.data() + i * share, from.data() + i * share, share);
      });
    };
    std::vector<double> ours, copies;
    for (int i = 0; i < 30; ++i) {
      ours.push_back(SecondsOf(call));
      copies.push_back(SecondsOf(copy));
    }
    const double value = bytes / Median(ours) / 1e9, peak = bytes / Median(copies) / 1e9;
    std::printf(
        "{\"case\":\"%s T%d\",\"value\":%.2f,\"unit\":\"GB/s\",\"peak\":%.2f,"
        "\"ratio\":%.3f}\n",
        name.c_str(), threads, value, peak, value / peak);
    std::fflush(stdout);
  }

  const int64_t N_, Dv_;
  const DType dtype_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<MergePart> parts_, dparts_;
  MergeProblem problem_;
  MergeGradProblem grad_;
};

int Main() {
  for (int threads : {1, 2}) {
    auto made = NewCpuDevice({.threads = threads});
    if (!made.ok()) return 1;
    auto& device = static_cast<CpuDevice&>(**made);
    for (int64_t N : {int64_t{1} << 10, int64_t{1} << 17}) {
      const std::string rows = " N" + std::to_string(N);
      Bench(2, N, 64, DType::kF32).Run(device, "2 parts D64 f32" + rows);
      Bench(3, N, 128, DType::kF32).Run(device, "3 parts D128 f32" + rows);
      Bench(2, N, 64, DType::kBF16).Run(device, "2 parts D64 bf16" + rows);
    }
  }
  return 0;
}

}  // namespace
}  // namespace attnd

int main() { return attnd::Main(); }
