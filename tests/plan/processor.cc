#include "kernels/cpu/cpu.h"
#include "tests/plan/planned_device.h"

namespace attnd::testing {

const int64_t kMostAllocatedBytes = int64_t{4} << 20;

std::unique_ptr<Device> NewPlannedDevice() { return *NewCpuDevice({.threads = 2}); }

}  // namespace attnd::testing
