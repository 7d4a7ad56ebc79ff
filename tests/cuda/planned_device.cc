// In place of tests/plan/processor.cc: plans are made for the CUDA device.
#include "tests/plan/planned_device.h"

#include <utility>

#include "kernels/cuda/cuda.h"

namespace attnd::testing {

std::unique_ptr<Device> NewPlannedDevice() {
  return std::move(NewCudaDevices({.memory_bytes = int64_t{80} << 30}).devices.front());
}

}  // namespace attnd::testing
