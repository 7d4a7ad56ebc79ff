// The CPU as a device: one pool of threads, one instruction set, kernels in Highway.
#pragma once

#include <functional>
#include <memory>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/targets.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/device/device.h"

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
  // Around the items of a launch of attend or scan: allocating, listing, and reading again what
  // other requests pushed out of the caches. matmul lists less.
  static constexpr double kLaunchSeconds = 7e-6, kMatMulLaunchSeconds = 2e-6;

  // Seconds that `items` independent items of `serial_seconds` in all take on this pool.
  double ParallelSeconds(double serial_seconds, int64_t items) const;
  bool Parallel(double serial_seconds) const { return serial_seconds >= kParallelSeconds; }
  // ThreadPool::ParallelFor for a stream's run, in parallel where the predicted work pays for it.
  void ForEach(Stream& stream, int64_t items, double serial_seconds,
               const std::function<void(int64_t, int)>& fn) const {
    pool->ParallelFor(items, Parallel(serial_seconds), fn, stream.control());
  }
};

// `bytes` of scratch of a stream, aligned to 64; null when there is no memory. On a dry stream the
// buffer has no data.
inline std::shared_ptr<Buffer> Take(Stream& stream, int64_t bytes) {
  return stream.workspace().Allocate(bytes);
}
// The status for a Take that returned null.
DeviceStatus NoMemory(Stream& stream);

// On a dry stream: adds the predicted `seconds` to its work and returns true; the launch is done.
[[nodiscard]] inline bool Predicted(Stream& stream, double seconds) {
  if (stream.is_dry()) stream.work().seconds += seconds;
  return stream.is_dry();
}

class CpuDevice final : public Device {
 public:
  CpuDevice(Isa isa, const CpuOptions& options);

  const DeviceInfo& info() const override { return info_; }
  BufferPool& memory() override { return memory_; }
  const Cpu& cpu() const { return cpu_; }
  int64_t launches() const override { return pool_.launches(); }

  DeviceStatus Run(Stream& stream, Launch launch) override;
  DeviceStatus Upload(Stream& stream, void* destination,
                      std::span<const std::span<const std::byte>> spans,
                      std::shared_ptr<const void> source) override;
  DeviceStatus Download(Stream& stream, const void* source, std::span<std::byte> bytes) override;

 private:
  BufferPool memory_;
  ThreadPool pool_;
  Cpu cpu_;
  DeviceInfo info_;
};

}  // namespace attnd
