// The only function of its file, so that a program may link other devices in its place.
#include "kernels/engine/devices.h"

#include <utility>

#include "kernels/core/status.h"

namespace attnd {

absl::StatusOr<std::vector<std::unique_ptr<Device>>> NewDevices(const CpuOptions& cpu) {
  absl::StatusOr<std::unique_ptr<Device>> processor = NewCpuDevice(cpu);
  ATTND_RETURN_IF_ERROR(processor.status());
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(*std::move(processor));
  return devices;
}

}  // namespace attnd
