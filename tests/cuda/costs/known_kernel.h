// A kernel whose accesses and arithmetic are known.
#pragma once

#include <cuda_runtime_api.h>

namespace attnd::testing {

// One warp: from [128], to [32 stride], stride at most 32.
cudaError_t LaunchKnown(cudaStream_t stream, const float* from, float* to, int stride);

}  // namespace attnd::testing
