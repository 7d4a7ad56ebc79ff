// Another device without some of its launches: what ops composes in their place runs instead.
#pragma once

#include <bitset>
#include <memory>
#include <utility>
#include <variant>

#include "kernels/device/device.h"

namespace attnd::testing {

// A set of alternatives of Launch.
using LaunchSet = std::bitset<std::variant_size_v<Launch>>;

template <class... Args>
LaunchSet SetOf() {
  LaunchSet set;
  (set.set(Launch(Args()).index()), ...);
  return set;
}

// Those that ops composes from others, and those that every device runs. A new primitive goes into
// one of the two.
inline LaunchSet ComposedLaunches() {
  return SetOf<MergeArgs, MergeGradArgs, SoftmaxArgs, LayerNormArgs, PoolArgs, ScanArgs,
               ScanGradArgs, DepthwiseConvArgs, DepthwiseConvGradArgs>();
}
inline LaunchSet BasicLaunches() {
  return SetOf<AttendArgs, AttendGradArgs, MatMulArgs, ElementwiseArgs, ReduceArgs, CumulativeArgs,
               GatherRowsArgs, ScatterRowsArgs, SortArgs, FftArgs>();
}

class DecliningDevice : public Device {
 public:
  explicit DecliningDevice(Device& inner, const LaunchSet& declined = ComposedLaunches())
      : inner_(inner), declined_(declined) {}

  const DeviceInfo& info() const override { return inner_.info(); }
  BufferPool& memory() override { return inner_.memory(); }
  std::shared_ptr<WorkQueue> NewQueue() override { return inner_.NewQueue(); }
  DeviceStatus Run(Stream& stream, Launch launch) override {
    if (declined_[launch.index()]) {
      was_declined_.set(launch.index());
      return {DeviceStatus::Code::kDeclined, "declined"};
    }
    return inner_.Run(stream, std::move(launch));
  }
  DeviceStatus Upload(Stream& stream, void* destination,
                      std::span<const std::span<const std::byte>> spans,
                      std::shared_ptr<const void> source) override {
    return inner_.Upload(stream, destination, spans, std::move(source));
  }
  DeviceStatus Download(Stream& stream, const void* source, std::span<std::byte> bytes) override {
    return inner_.Download(stream, source, bytes);
  }
  int64_t launches() const override { return inner_.launches(); }

  const LaunchSet& was_declined() const { return was_declined_; }

 private:
  Device& inner_;
  const LaunchSet declined_;
  LaunchSet was_declined_;
};

}  // namespace attnd::testing
