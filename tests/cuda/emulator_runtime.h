// What tests of the emulated CUDA runtime share.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda/simt.h"
#include "tests/cuda/run_kernel.h"

namespace attnd::testing {

inline cudaStream_t NewStream() {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  return stream;
}

inline cudaEvent_t NewEvent(unsigned flags = cudaEventDisableTiming) {
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&event, flags), cudaSuccess);
  return event;
}

inline float* NewFloats(size_t n) {
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, n * sizeof(float)), cudaSuccess);
  return static_cast<float*>(data);
}

inline cudaError_t Fetch(std::vector<float>* to, const float* from, cudaStream_t stream) {
  return cudaMemcpyAsync(to->data(), from, to->size() * sizeof(float), cudaMemcpyDeviceToHost,
                         stream);
}

__global__ inline void Set(float* x, float value) { x[threadIdx.x] = value; }
__global__ inline void Add(float* x, const float* y) { x[threadIdx.x] += y[threadIdx.x]; }

class EmulatorRuntime : public ::testing::Test {
 protected:
  ~EmulatorRuntime() override {
    emu::ForgetErrors();
    EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  }
};

}  // namespace attnd::testing
