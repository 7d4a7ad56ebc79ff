// In place of kernels/engine/devices.cc: programs that link this run on the strict device, which
// has the name of the processor. With STRICT_DEVICE_SHARED set its memory is open to the host. With
// STRICT_DEVICE_BESIDE set there is a second device, "plain:0": the processor itself.
// STRICT_DEVICE_MEMORY: the bytes that the strict device reports; STRICT_DEVICE_MOST: those that it
// has; STRICT_DEVICE_FAILS_AT: the launch at which it fails for good.
#include <cstdlib>

#include "kernels/core/status.h"
#include "kernels/engine/devices.h"
#include "tests/device/renamed_device.h"
#include "tests/device/strict_device.h"

namespace attnd {

namespace {

int64_t Number(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? 0 : std::atoll(text);
}

}  // namespace

absl::StatusOr<Devices> NewDevices(const DeviceOptions& options) {
  const CpuOptions& cpu = options.cpu;
  absl::StatusOr<std::unique_ptr<Device>> strict =
      testing::NewStrictDevice({.cpu = cpu,
                                .has_host_memory = std::getenv("STRICT_DEVICE_SHARED") != nullptr,
                                .memory_bytes = Number("STRICT_DEVICE_MEMORY"),
                                .most_bytes = Number("STRICT_DEVICE_MOST"),
                                .fails_at = Number("STRICT_DEVICE_FAILS_AT")});
  ATTND_RETURN_IF_ERROR(strict.status());
  Devices devices;
  devices.list.push_back(*std::move(strict));
  if (std::getenv("STRICT_DEVICE_BESIDE") == nullptr) return devices;
  absl::StatusOr<std::unique_ptr<Device>> beside = NewCpuDevice(cpu);
  ATTND_RETURN_IF_ERROR(beside.status());
  devices.list.push_back(std::make_unique<testing::RenamedDevice>("plain:0", *std::move(beside)));
  return devices;
}

}  // namespace attnd
