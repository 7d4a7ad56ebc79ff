#include "kernels/cpu/cpu.h"
#include "tests/plan/planned_device.h"

namespace attnd::testing {

std::unique_ptr<Device> NewPlannedDevice() { return *NewCpuDevice({.threads = 2}); }

}  // namespace attnd::testing
