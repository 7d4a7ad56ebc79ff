// Errors of the emulated CUDA runtime, on demand and by misuse, and what its devices are like.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/cuda/emulator/streams.h"
#include "tests/cuda/emulator_runtime.h"

namespace attnd::testing {
namespace {

using EmulatorErrors = EmulatorRuntime;

TEST_F(EmulatorErrors, AFaultyLaunchLosesTheContext) {
  const cudaStream_t stream = NewStream(), other = NewStream();
  float* const x = NewFloats(32);
  std::vector<float> result(32, -1);
  emu::faults.launch = 2;
  ASSERT_EQ(LaunchKernel(stream, {}, Set, x, 1.f), cudaSuccess);
  ASSERT_EQ(Fetch(&result, x, stream), cudaSuccess);
  ASSERT_EQ(LaunchKernel(stream, {}, Set, x, 2.f), cudaSuccess);
  ASSERT_EQ(Fetch(&result, x, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  EXPECT_EQ(result, std::vector<float>(32, 1));  // what came later was skipped
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamQuery(other), cudaErrorIllegalAddress);
  EXPECT_EQ(LaunchKernel(stream, {}, Set, x, 3.f), cudaErrorIllegalAddress);
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, 4), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_STREQ(cudaGetErrorString(cudaErrorIllegalAddress),
               "an illegal memory access was encountered");
  EXPECT_STREQ(cudaGetErrorName(cudaErrorIllegalAddress), "cudaErrorIllegalAddress");
  emu::ForgetErrors();
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
  EXPECT_EQ(cudaFree(x), cudaSuccess);
}

TEST_F(EmulatorErrors, FaultyCopyAndAllocation) {
  emu::faults.alloc = 1;
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, 128), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  ASSERT_EQ(cudaMalloc(&data, 128), cudaSuccess);
  std::vector<float> result(32);
  emu::faults.copy = 1;
  EXPECT_EQ(Fetch(&result, static_cast<float*>(data), TestStream()), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(TestStream()), cudaErrorIllegalAddress);
  emu::ForgetErrors();
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

// As kernel<<<>>> does, which returns nothing.
TEST_F(EmulatorErrors, ALaunchFindsTheErrorOfAnEarlierCall) {
  float* const x = NewFloats(32);
  emu::stream_options.faulty_event = 1;
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaErrorMemoryAllocation);
  EXPECT_EQ(LaunchKernel(TestStream(), {}, Set, x, 1.f), cudaErrorMemoryAllocation);
  EXPECT_EQ(LaunchKernel(TestStream(), {}, Set, x, 2.f), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(TestStream()), cudaSuccess);
  EXPECT_EQ(cudaFree(x), cudaSuccess);
}

TEST_F(EmulatorErrors, LaunchesThatADeviceRefuses) {
  const auto launch = [](const Shape& shape) {
    return LaunchKernel(TestStream(), shape, Set, static_cast<float*>(nullptr), 0.f);
  };
  EXPECT_EQ(launch({.block = 1025}), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch({.grid = {1, 65536}}), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch({.grid = 0}), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch({.shared_bytes = (227 << 10) + 1}), cudaErrorInvalidValue);
  EXPECT_EQ(cudaStreamSynchronize(TestStream()), cudaSuccess);
}

TEST_F(EmulatorErrors, Devices) {
  emu::machine.devices = 2;
  int count = 0;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(count, 2);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  // An error of one device leaves the other alone.
  const cudaStream_t first = NewStream();
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  const cudaStream_t second = NewStream();
  EXPECT_EQ(LaunchKernel(first, {}, Set, static_cast<float*>(nullptr), 0.f),
            cudaErrorInvalidResourceHandle);
  emu::faults.launch = 1;
  EXPECT_EQ(LaunchKernel(second, {}, Set, static_cast<float*>(nullptr), 0.f), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(second), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamSynchronize(first), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(second), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(first), cudaSuccess);
  emu::machine.devices = 0;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
  EXPECT_EQ(count, 0);
  emu::machine = {.has_old_driver = true};
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
  int version = 0;
  EXPECT_EQ(cudaDriverGetVersion(&version), cudaSuccess);
  EXPECT_LT(version, CUDART_VERSION);
  emu::machine = {};
}

TEST_F(EmulatorErrors, MachineFromEnvironment) {
  setenv("EMULATED_CUDA_DEVICES", "3", 1);
  setenv("EMULATED_CUDA_MEMORY", "1000000", 1);
  setenv("EMULATED_CUDA_DRIVER", "old", 1);
  setenv("EMULATED_CUDA_FAULT", "copy:5", 1);
  setenv("EMULATED_CUDA_WORKERS", "2", 1);
  setenv("EMULATED_CUDA_ORDER", "random", 1);
  setenv("EMULATED_CUDA_PACE", "at-once", 1);
  setenv("EMULATED_CUDA_SHARED", "1024", 1);
  const emu::Machine machine = emu::MachineFromEnvironment();
  const emu::Options options = emu::OptionsFromEnvironment();
  const emu::Faults faults;
  const emu::StreamOptions streams;
  for (const char* name :
       {"DEVICES", "MEMORY", "DRIVER", "FAULT", "WORKERS", "ORDER", "PACE", "SHARED"}) {
    unsetenv((std::string("EMULATED_CUDA_") + name).c_str());
  }
  EXPECT_EQ(machine.devices, 3);
  EXPECT_EQ(machine.shared_bytes, 1024);
  EXPECT_EQ(machine.memory_bytes, 1000000);
  EXPECT_TRUE(machine.has_old_driver);
  EXPECT_EQ(faults.copy, 5);
  EXPECT_EQ(options.workers, 2);
  EXPECT_EQ(options.order, emu::Order::kRandom);
  EXPECT_EQ(streams.pace, emu::Pace::kAtOnce);
}

TEST_F(EmulatorErrors, RatesThatFollowFromClocks) {
  const auto attribute = [](cudaDeviceAttr which) {
    int value = 0;
    EXPECT_EQ(cudaDeviceGetAttribute(&value, which, 0), cudaSuccess);
    return static_cast<double>(value);
  };
  EXPECT_NEAR(attribute(cudaDevAttrMultiProcessorCount) * attribute(cudaDevAttrClockRate) * 64 * 2,
              1e6, 1e4);
  EXPECT_NEAR(
      attribute(cudaDevAttrMemoryClockRate) * 2 * attribute(cudaDevAttrGlobalMemoryBusWidth) / 8,
      1e6, 1e4);
}

}  // namespace
}  // namespace attnd::testing
