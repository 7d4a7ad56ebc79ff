// The primitives on a CUDA device: a specialisation for each alternative of Launch, in the file of
// its name. Contracts: kernels/device/<primitive>.h; what is common to all: CudaDevice::Run.
#pragma once

#include "kernels/device/status.h"

namespace attnd {
class Stream;
}

namespace attnd::cuda {

class CudaDevice;

// Of an alternative without a kernel: an error of the linker.
template <class Args>
DeviceStatus RunOnCuda(CudaDevice& device, Stream& stream, const Args& args);

}  // namespace attnd::cuda
