#include "kernels/cpu/cpu.h"
#include "tests/plan/planned_device.h"

namespace attnd::testing {

// A thousand steps take less than a millisecond; ten times that on a busy machine.
const double kSecondsOfStep = 1e-5;

std::unique_ptr<Device> NewPlannedDevice() { return *NewCpuDevice({.threads = 2}); }

}  // namespace attnd::testing
