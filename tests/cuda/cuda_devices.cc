// In place of kernels/engine/devices.cc: the CUDA device alone, so that the tests of the methods,
// which run on the first device of a library, run on it.
#include "absl/status/status.h"
#include "kernels/cuda/cuda.h"
#include "kernels/engine/devices.h"

namespace attnd {

absl::StatusOr<std::vector<std::unique_ptr<Device>>> NewDevices(const CpuOptions& cpu) {
  CudaDevices found =
      NewCudaDevices({.retain_bytes = cpu.retain_bytes, .poison_memory = cpu.poison_memory});
  if (!found.why_not.empty()) return absl::UnavailableError(found.why_not);
  return std::move(found.devices);
}

}  // namespace attnd
