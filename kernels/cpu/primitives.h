// The primitives on the CPU: a specialisation for each alternative of Launch, in the file of its
// name. Contracts: kernels/device/<primitive>.h; what is common to all: CpuDevice::Run.
#pragma once

#include "kernels/device/launch.h"
#include "kernels/device/status.h"

namespace attnd {

class CpuDevice;
class Stream;

// Of an alternative without a kernel: an error of the linker.
template <class Args>
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const Args& args);

}  // namespace attnd
