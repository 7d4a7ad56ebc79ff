#include "kernels/ops/status_of.h"

#include "kernels/core/stopped.h"

namespace attnd {

absl::Status StatusOf(const DeviceStatus& status) {
  switch (status.code()) {
    case DeviceStatus::Code::kOk:
      return absl::OkStatus();
    case DeviceStatus::Code::kNoMemory:
      return absl::ResourceExhaustedError(status.text());
    case DeviceStatus::Code::kTooLarge:
      return absl::UnimplementedError(status.text());
    case DeviceStatus::Code::kStopped:
      return StoppedStatus();
    default:
      return absl::InternalError(status.text());
  }
}

}  // namespace attnd
