// Wraps a device and declines some of its launches, so that the compositions of ops run instead. It
// counts uploads.
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

// Those that ops composes from others. Every device runs the rest.
inline LaunchSet ComposedLaunches() {
  return SetOf<MergeArgs, MergeGradArgs, SoftmaxArgs, LayerNormArgs, LayerNormGradArgs, PoolArgs,
               ScanArgs, ScanGradArgs, DepthwiseConvArgs, DepthwiseConvGradArgs, FeatureRowsArgs,
               RandomFeaturesArgs, RandomFeaturesGradArgs>();
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
    uploads_ += stream.is_dry() ? 0 : 1;
    return inner_.Upload(stream, destination, spans, std::move(source));
  }
  DeviceStatus Download(Stream& stream, const void* source, std::span<std::byte> bytes) override {
    return inner_.Download(stream, source, bytes);
  }
  int64_t launches() const override { return inner_.launches(); }

  const LaunchSet& was_declined() const { return was_declined_; }
  int64_t uploads() const { return uploads_; }  // of streams that are not dry

 private:
  Device& inner_;
  const LaunchSet declined_;
  LaunchSet was_declined_;
  int64_t uploads_ = 0;
};

}  // namespace attnd::testing
