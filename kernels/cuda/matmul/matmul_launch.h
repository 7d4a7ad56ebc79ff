// Products that other primitives of this device are made of.
#pragma once

#include <vector>

#include "kernels/cuda/matmul/matmul_task.h"
#include "kernels/device/status.h"
#include "kernels/device/stream.h"

namespace attnd::cuda {

class CudaDevice;

// matmul with any finish. With waves `out` is [.., M, N], and the second result lies N elements
// behind the first.
DeviceStatus LaunchMatMul(CudaDevice& device, Stream& stream,
                          const std::vector<MatMulProblem>& problems, const MatMulFinish& finish);

}  // namespace attnd::cuda
