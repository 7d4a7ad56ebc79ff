// Runs kernels of tests on arrays in device memory. Both compilers take it: with nvcc the same
// tests run on a device, which is what the emulator's expectations were written for.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <tuple>
#include <vector>

#include "kernels/cuda/simt.h"
#include "tests/cuda/test_stream.h"
#include "tests/cuda/thread_orders.h"

namespace attnd::testing {

// Values in device memory; of a const T the kernel gets const pointers.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values) : size_(values.size()) {
    void* data = nullptr;
    EXPECT_EQ(cudaMallocAsync(&data, bytes(), TestStream()), cudaSuccess);
    data_ = static_cast<T*>(data);
    EXPECT_EQ(cudaMemcpyAsync(data_, values.data(), bytes(), cudaMemcpyDefault, TestStream()),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(TestStream()), cudaSuccess);
  }
  ~DeviceArray() {
    static_cast<void>(cudaFreeAsync(data_, TestStream()));
    static_cast<void>(cudaStreamSynchronize(TestStream()));
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return data_; }
  std::vector<T> Get() const {
    std::vector<T> values(size_);
    EXPECT_EQ(cudaMemcpyAsync(values.data(), data_, bytes(), cudaMemcpyDefault, TestStream()),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(TestStream()), cudaSuccess);
    return values;
  }

 private:
  size_t bytes() const { return size_ * sizeof(T); }

  const size_t size_;
  T* data_ = nullptr;
};

struct Shape {
  dim3 grid = 1, block = 32;
  size_t shared_bytes = 0;
};

// kernel(args...) in the order of `stream`.
template <class... P>
cudaError_t LaunchKernel(cudaStream_t stream, const Shape& shape, void (*kernel)(P...),
                         std::type_identity_t<P>... args) {
#ifdef __CUDACC__
  kernel<<<shape.grid, shape.block, shape.shared_bytes, stream>>>(args...);
  return cudaGetLastError();
#else
  return emu::Enqueue(stream, {shape.grid, shape.block, shape.shared_bytes},
                      [kernel, tuple = std::tuple<P...>(args...)] { std::apply(kernel, tuple); });
#endif
}

// The same, and waits.
template <class... P>
void RunKernel(const Shape& shape, void (*kernel)(P...), std::type_identity_t<P>... args) {
  ASSERT_EQ(LaunchKernel(TestStream(), shape, kernel, args...), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(TestStream()), cudaSuccess);
}

}  // namespace attnd::testing
