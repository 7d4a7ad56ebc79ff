// The CPU backend: one pool of threads, one instruction set, kernels in Highway.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/core/thread_pool.h"
#include "kernels/cpu/targets.h"

namespace attnd {

// What every primitive needs to know. Constant after construction.
struct Cpu {
  Isa isa = Isa::kSse4;
  int threads = 1;
  ThreadPool* pool = nullptr;
  double thread_flops = 0;      // float32 multiply-add peak of one thread, FLOP/s
  double bytes_per_second = 0;  // streaming read of all threads

  // Below this much predicted work on one thread, fanning out costs more than it gains.
  static constexpr double kParallelSeconds = 30e-6;

  // Seconds that `items` independent items of `serial_seconds` in all take on this pool.
  double ParallelSeconds(double serial_seconds, int64_t items) const;
  bool Parallel(double serial_seconds) const { return serial_seconds >= kParallelSeconds; }
  // ThreadPool::ParallelFor for a stream's run, in parallel where so much work is worth it.
  void ForEach(Stream& stream, int64_t items, double serial_seconds,
               const std::function<void(int64_t, int)>& fn) const {
    pool->ParallelFor(items, Parallel(serial_seconds), fn, stream.control());
  }
};

// `bytes` of scratch of a stream, aligned to 64. RESOURCE_EXHAUSTED when there is no memory; on a
// dry stream the buffer has no data.
absl::StatusOr<std::shared_ptr<Buffer>> Take(Stream& stream, int64_t bytes);

class CpuBackend final : public Backend {
 public:
  CpuBackend(Isa isa, int threads);

  const DeviceInfo& info() const override { return info_; }
  const Cpu& cpu() const { return cpu_; }
  // Parallel launches so far.
  int64_t launches() const override { return pool_.launches(); }

  Status Attend(Stream& stream, const AttendArgs& args) override;
  Status AttendGrad(Stream& stream, const AttendGradArgs& args) override;
  Status Merge(Stream& stream, const MergeArgs& args) override;
  Status MergeGrad(Stream& stream, const MergeGradArgs& args) override;
  Status Scan(Stream& stream, const ScanArgs& args) override;
  Status ScanGrad(Stream& stream, const ScanGradArgs& args) override;
  Status MatMul(Stream& stream, const MatMulArgs& args) override;
  Status Elementwise(Stream& stream, const ElementwiseArgs& args) override;
  Status Reduce(Stream& stream, const ReduceArgs& args) override;
  Status Softmax(Stream& stream, const SoftmaxArgs& args) override;
  Status Cumulative(Stream& stream, const CumulativeArgs& args) override;
  Status LayerNorm(Stream& stream, const LayerNormArgs& args) override;
  Status Pool(Stream& stream, const PoolArgs& args) override;
  Status DepthwiseConv(Stream& stream, const DepthwiseConvArgs& args) override;
  Status DepthwiseConvGrad(Stream& stream, const DepthwiseConvGradArgs& args) override;
  Status GatherRows(Stream& stream, const GatherRowsArgs& args) override;
  Status ScatterRows(Stream& stream, const ScatterRowsArgs& args) override;
  Status Sort(Stream& stream, const SortArgs& args) override;
  Status RealFft2(Stream& stream, const FftArgs& args) override;
  Status Upload(Stream& stream, void* destination,
                std::span<const std::span<const std::byte>> spans) override;
  Status Download(Stream& stream, const void* source, std::span<std::byte> bytes) override;

 private:
  template <class F>
  absl::Status Run(Stream& stream, const F& primitive);

  ThreadPool pool_;
  Cpu cpu_;
  DeviceInfo info_;
};

}  // namespace attnd
