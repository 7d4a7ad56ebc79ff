// In place of kernels/engine/devices.cc: the CUDA device alone, so that the tests of the methods,
// which run on the first device of a library, run on it.
#include "absl/status/status.h"
#include "kernels/engine/devices.h"

namespace attnd {

absl::StatusOr<Devices> NewDevices(const DeviceOptions& options) {
  // Names of instruction sets are checked as for the processor.
  if (const auto processor = NewCpuDevice(options.cpu); !processor.ok()) return processor.status();
  CudaDevices found = NewCudaDevices(
      {.retain_bytes = options.cpu.retain_bytes, .poison_memory = options.cpu.poison_memory});
  if (!found.why_not.empty()) return absl::UnavailableError(found.why_not);
  return Devices{.list = std::move(found.devices), .note = {}};
}

}  // namespace attnd
