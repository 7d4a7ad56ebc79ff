// The device that the self-test runs on: the processor, beside which every launch also runs on the
// device under test.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device/host_launch.h"
#include "kernels/engine/self_test.h"

namespace attnd {

// Results of the processor go on. Launches whose row has failed before run there alone.
class ComparingDevice final : public Device {
 public:
  // Both outlive it. `reference` has host memory.
  ComparingDevice(Device& tested, Device& reference) : tested_(tested), reference_(reference) {}

  const DeviceInfo& info() const override { return reference_.info(); }
  BufferPool& memory() override { return reference_.memory(); }
  DeviceStatus Run(Stream& stream, Launch launch) override;
  DeviceStatus Upload(Stream& stream, void* destination,
                      std::span<const std::span<const std::byte>> spans,
                      std::shared_ptr<const void> source) override {
    return reference_.Upload(stream, destination, spans, std::move(source));
  }
  DeviceStatus Download(Stream& stream, const void* source, std::span<std::byte> bytes) override {
    return reference_.Download(stream, source, bytes);
  }

  // Adds a row for each primitive and dtype that was launched, in the order of Launch, and what
  // follows from all rows, from what the tested device has become, and the seconds since this
  // object was made. `name`: of the rows, in place of the primitive.
  void AddTo(SelfTestReport* report, const char* name = nullptr);

 private:
  bool RunTested(Launch launch, SelfTestRow* row, std::vector<HostStretch>* stretches,
                 std::vector<std::vector<std::byte>>* results);

  using Clock = std::chrono::steady_clock;
  Device& tested_;
  Device& reference_;
  const Clock::time_point start_ = Clock::now();
  std::map<std::pair<size_t, std::string>, SelfTestRow> rows_;
  bool lacked_memory_ = false;
};

}  // namespace attnd
