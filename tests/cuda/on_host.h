// A device of its own memory behind views of host memory: what a test of primitives for the
// processor needs to run on it.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "kernels/device/device.h"

namespace attnd::testing {

// Runs each launch alone: copies all memory between the first and the last element of its views to
// the device, each stretch into a buffer of its own, and back when it has run. Scratch memory of
// the device counts as that of the stream.
class OnHost final : public Device {
 public:
  explicit OnHost(std::unique_ptr<Device> inner);

  const DeviceInfo& info() const override { return info_; }
  BufferPool& memory() override { return memory_; }
  DeviceStatus Run(Stream& stream, Launch launch) override;
  DeviceStatus Upload(Stream& stream, void* destination,
                      std::span<const std::span<const std::byte>> spans,
                      std::shared_ptr<const void> source) override;
  DeviceStatus Download(Stream& stream, const void* source, std::span<std::byte> bytes) override;
  int64_t launches() const override { return inner_->launches(); }

  Device& inner() { return *inner_; }

 private:
  const std::unique_ptr<Device> inner_;
  DeviceInfo info_;
  BufferPool memory_{/*retain_bytes=*/0, /*poison=*/true};
};

}  // namespace attnd::testing
