// Calls of the CUDA runtime as DeviceStatus.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "kernels/device/status.h"

namespace attnd::cuda {

// "cuda: <what>: out of memory (cudaErrorMemoryAllocation)"; kOk of cudaSuccess.
inline DeviceStatus StatusOf(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  const auto code = error == cudaErrorMemoryAllocation ? DeviceStatus::Code::kNoMemory
                                                       : DeviceStatus::Code::kFailed;
  return {code, std::string("cuda: ") + what + ": " + cudaGetErrorString(error) + " (" +
                    cudaGetErrorName(error) + ")"};
}

}  // namespace attnd::cuda
