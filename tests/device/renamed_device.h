// A device under another name, optionally with other costs of patterns, so that one engine can have
// two of a kind.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "kernels/device/device.h"

namespace attnd::testing {

class RenamedDevice : public Device {
 public:
  RenamedDevice(std::string name, std::unique_ptr<Device> device)
      : device_(std::move(device)), info_(device_->info()) {
    info_.name = std::move(name);
  }
  RenamedDevice(std::string name, std::unique_ptr<Device> device, const PatternTuning& patterns)
      : RenamedDevice(std::move(name), std::move(device)) {
    info_.patterns = patterns;
  }

  const DeviceInfo& info() const override { return info_; }
  BufferPool& memory() override { return device_->memory(); }
  std::shared_ptr<WorkQueue> NewQueue() override { return device_->NewQueue(); }
  DeviceStatus Run(Stream& stream, Launch launch) override {
    return device_->Run(stream, std::move(launch));
  }
  DeviceStatus Upload(Stream& stream, void* destination,
                      std::span<const std::span<const std::byte>> spans,
                      std::shared_ptr<const void> source) override {
    return device_->Upload(stream, destination, spans, std::move(source));
  }
  DeviceStatus Download(Stream& stream, const void* source, std::span<std::byte> bytes) override {
    return device_->Download(stream, source, bytes);
  }
  std::string failure() const override { return device_->failure(); }
  int64_t launches() const override { return device_->launches(); }
  DeviceCounters counters() const override { return device_->counters(); }
  DeviceReadings readings() const override { return device_->readings(); }

 private:
  const std::unique_ptr<Device> device_;
  DeviceInfo info_;
};

}  // namespace attnd::testing
