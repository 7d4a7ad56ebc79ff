// The outcome of a call of a device.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace attnd {

class [[nodiscard]] DeviceStatus {
 public:
  enum class Code : uint8_t {
    kOk,
    kDeclined,  // the device does not run such launches: nothing was allocated, counted or written
    kNoMemory,
    kTooLarge,  // the device never runs this launch, whatever memory is free
    kStopped,   // the RunControl of the stream ended the run: outputs are undefined
    kFailed,    // a broken contract or a device that failed
  };

  DeviceStatus() = default;  // kOk
  DeviceStatus(Code code, std::string text) : code_(code), text_(std::move(text)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& text() const { return text_; }  // what happened; empty with kOk

 private:
  Code code_ = Code::kOk;
  std::string text_;
};

}  // namespace attnd
