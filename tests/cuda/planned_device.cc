// In place of tests/plan/processor.cc: plans are made for the CUDA device.
#include "tests/plan/planned_device.h"

#include <utility>

#include "kernels/cuda/cuda.h"

namespace attnd::testing {

// Elementwise lists its pieces of 2^30 elements, 128 at most, with their shapes; one launch on the
// processor has no pieces.
const int64_t kMostAllocatedBytes = int64_t{40} << 20;

std::unique_ptr<Device> NewPlannedDevice() {
  return std::move(NewCudaDevices({.memory_bytes = int64_t{80} << 30}).devices.front());
}

}  // namespace attnd::testing
