// In place of kernels/engine/devices.cc: the programs that link this run on the strict device.
#include "kernels/core/status.h"
#include "kernels/engine/devices.h"
#include "tests/device/strict_device.h"

namespace attnd {

absl::StatusOr<std::vector<std::unique_ptr<Device>>> NewDevices(const CpuOptions& cpu) {
  absl::StatusOr<std::unique_ptr<Device>> strict = testing::NewStrictDevice({.cpu = cpu});
  ATTND_RETURN_IF_ERROR(strict.status());
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(*std::move(strict));
  return devices;
}

}  // namespace attnd
