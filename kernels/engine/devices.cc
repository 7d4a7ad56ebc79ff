// The only function of its file, so that a program may link other devices in its place.
#include "kernels/engine/devices.h"

#include <utility>

#include "kernels/core/status.h"

namespace attnd {

absl::StatusOr<Devices> NewDevices(const DeviceOptions& options) {
  using Kinds = DeviceOptions::Kinds;
  Devices devices;
  if (options.kinds != Kinds::kCuda) {
    absl::StatusOr<std::unique_ptr<Device>> processor = NewCpuDevice(options.cpu);
    ATTND_RETURN_IF_ERROR(processor.status());
    devices.list.push_back(*std::move(processor));
  }
  if (options.kinds == Kinds::kCpu) return devices;
  CudaDevices cuda = NewCudaDevices(options.cuda);
  const bool lacks_named = !options.cuda.devices.empty() && !cuda.why_not.empty();
  if (options.kinds == Kinds::kCuda && (cuda.devices.empty() || lacks_named)) {
    return absl::UnavailableError(cuda.why_not);
  }
  for (std::unique_ptr<Device>& device : cuda.devices) devices.list.push_back(std::move(device));
  devices.note = std::move(cuda.why_not);
  return devices;
}

}  // namespace attnd
