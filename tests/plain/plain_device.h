// A device in plain double loops, on which tests of tape and engine run. float32 storage only.
#pragma once

#include "kernels/device/device.h"

namespace attnd::testing {

struct DeviceCalls {
  int attend = 0, attend_grad = 0, scan = 0, scan_grad = 0, other = 0;
  bool operator==(const DeviceCalls&) const = default;
};

class PlainDevice : public Device {
 public:
  PlainDevice() { info_.name = info_.description = "plain"; }

  const DeviceInfo& info() const override { return info_; }
  BufferPool& memory() override { return memory_; }
  DeviceStatus Run(Stream& stream, Launch launch) override;
  DeviceStatus Upload(Stream& stream, void* destination,
                      std::span<const std::span<const std::byte>> spans,
                      std::shared_ptr<const void> source) override;
  DeviceStatus Download(Stream& stream, const void* source, std::span<std::byte> bytes) override;

  // On streams that are not dry.
  const DeviceCalls& calls() const { return calls_; }
  int64_t launches() const override {
    return calls_.attend + calls_.attend_grad + calls_.scan + calls_.scan_grad + calls_.other;
  }

 private:
  BufferPool memory_{/*retain_bytes=*/0, /*poison=*/true};
  DeviceInfo info_;
  DeviceCalls calls_;
};

}  // namespace attnd::testing
