// In place of tests/plan/processor.cc: plans are made for the CUDA device.
#include "tests/plan/planned_device.h"

#include <utility>

#include "kernels/cuda/cuda.h"

namespace attnd::testing {

// A step of elementwise lists its pieces of 2^30 elements, 128 at most: 2e-5 where the processor
// takes 1e-6, twice that on a busy machine.
const double kSecondsOfStep = 4e-5;

std::unique_ptr<Device> NewPlannedDevice() {
  return std::move(NewCudaDevices({.memory_bytes = int64_t{80} << 30}).devices.front());
}

}  // namespace attnd::testing
