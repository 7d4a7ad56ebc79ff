// Launches that the emulator repeats in several orders of their threads.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

#include "tests/cuda/emulator/orders.h"
#include "tests/cuda/emulator_runtime.h"

namespace attnd::testing {
namespace {

class EmulatorOrders : public EmulatorRuntime {
 protected:
  ~EmulatorOrders() override { emu::repeats = before_; }

  // What x holds after `launches` of `body` by 64 threads in two blocks each, as a kernel of its
  // own: `kernel` is where it would begin.
  std::vector<float> Run(const void* kernel, const std::function<void(float*)>& body,
                         int launches) {
    const cudaStream_t stream = NewStream();
    const DeviceArray<float> x(std::vector<float>(64, 1));
    for (int i = 0; i < launches; ++i) {
      EXPECT_EQ(emu::Enqueue(stream, {.grid = 2, .block = 32, .shared_bytes = 0, .kernel = kernel},
                             [&] { body(x.data()); }),
                cudaSuccess);
    }
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    return x.Get();
  }

 private:
  const int64_t before_ = std::exchange(emu::repeats, 2);
};

void Double(float* x) { x[blockIdx.x * 32 + threadIdx.x] *= 2; }
[[maybe_unused]] void WriteNumber(float* x) { x[0] = static_cast<float>(threadIdx.x); }
[[maybe_unused]] void WriteBlock(float* x) { x[0] = static_cast<float>(blockIdx.x); }

TEST_F(EmulatorOrders, EachStartsFromTheSameMemory) {
  const int64_t repeated = emu::RepeatedLaunches();
  EXPECT_EQ(Run(reinterpret_cast<const void*>(&Double), Double, 3), std::vector<float>(64, 8));
  EXPECT_EQ(emu::RepeatedLaunches() - repeated, 2);
}

// The thread sanitizer sees such races first.
#if !defined(__SANITIZE_THREAD__)
TEST_F(EmulatorOrders, TheOrderOfThreadsMustNotShow) {
  EXPECT_DEATH(Run(reinterpret_cast<const void*>(&WriteNumber), WriteNumber, 1),
               "leaves other bits in reverse order: byte [0-3] of an array of 256");
}

TEST_F(EmulatorOrders, NorThatOfBlocks) {
  EXPECT_DEATH(Run(reinterpret_cast<const void*>(&WriteBlock), WriteBlock, 1),
               "leaves other bits in reverse order");
}
#endif

}  // namespace
}  // namespace attnd::testing
