// Slices of launches. On a device only nvcc compiles launch.h.
#include "kernels/cuda/launch.h"

#include <gtest/gtest.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/cuda/emulator/devices.h"

namespace attnd::cuda {
namespace {

constexpr int64_t kBlocks = int64_t{1} << 20;

// Blocks that may find work can be stopped as others are; a plan counts what is usual.
TEST(Launch, BlocksThatMayFindWorkRunInSlices) {
  const CudaDevices found = NewCudaDevices({});
  auto& device = static_cast<CudaDevice&>(*found.devices.at(0));
  Stream stream(device, &device.memory()), dry(device, nullptr);
  const auto slices = [&](const LaunchShape& shape) {
    SlicedLaunch launch(device, stream, shape, kBlocks);
    int count = 0;
    while (launch.Next()) ++count;
    return count;
  };
  EXPECT_EQ(slices({}), 1);
  EXPECT_NEAR(slices({.seconds = 1}), 1 / kSliceSeconds, 2);
  EXPECT_NEAR(slices({.most_seconds = 1}), 1 / kSliceSeconds, 2);
  const SlicedLaunch planned(device, dry, {.seconds = 1, .most_seconds = 5}, kBlocks);
  EXPECT_EQ(dry.work().seconds, 1);
}

// No slice is much shorter than the others: its end would leave processors idle.
TEST(Launch, SlicesAreOfEqualLength) {
  const CudaDevices found = NewCudaDevices({});
  auto& device = static_cast<CudaDevice&>(*found.devices.at(0));
  Stream stream(device, &device.memory());
  // One block more than a slice could take.
  const auto blocks = static_cast<int64_t>(8 * device.cuda().processors + 1);
  SlicedLaunch launch(device, stream, {.seconds = 3e-3}, blocks);
  ASSERT_TRUE(launch.Next());
  const int64_t first = launch.grid();
  ASSERT_TRUE(launch.Next());
  EXPECT_NEAR(static_cast<double>(launch.grid()), static_cast<double>(first), 1);
  EXPECT_FALSE(launch.Next());
}

// Cancel waits for a slice: of long blocks it has as many as run at once.
TEST(Launch, SlicesOfLongBlocksAreFew) {
  const CudaDevices found = NewCudaDevices({});
  auto& device = static_cast<CudaDevice&>(*found.devices.at(0));
  Stream stream(device, &device.memory());
  SlicedLaunch launch(device, stream, {.seconds = 10}, 1000);
  ASSERT_TRUE(launch.Next());
  EXPECT_EQ(static_cast<int>(launch.grid()), 2 * device.cuda().processors);
}

// Threads launch one kernel with sizes of their own at the same time.
TEST(Launch, SharedMemoryThatAKernelMayHaveIsNeverLowered) {
  const CudaDevices found = NewCudaDevices({});
  auto& device = static_cast<CudaDevice&>(*found.devices.at(0));
  Stream stream(device, &device.memory());
  static const int kernel = 0;
  const SlicedLaunch one(device, stream, {}, 1), other(device, stream, {}, 1);
  ASSERT_EQ(one.AllowShared(&kernel, 100 << 10), cudaSuccess);
  ASSERT_EQ(other.AllowShared(&kernel, 52 << 10), cudaSuccess);
  EXPECT_GE(emu::AllowedSharedBytes(&kernel), 100 << 10);
}

}  // namespace
}  // namespace attnd::cuda
