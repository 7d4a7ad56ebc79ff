// The stream of tests that call the runtime themselves.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

namespace attnd::testing {

inline cudaStream_t TestStream() {
  static cudaStream_t stream = [] {
    cudaStream_t s = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
    return s;
  }();
  return stream;
}

}  // namespace attnd::testing
