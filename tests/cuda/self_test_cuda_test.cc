// The CUDA device passes the self-test with which a server starts, and no kernel is left out of it.
#include "kernels/engine/self_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "kernels/cpu/cpu.h"
#include "kernels/cuda/cuda.h"
#ifndef ATTND_TESTS_ON_DEVICE
#include "tests/cuda/emulator/kernels.h"
#endif

namespace attnd::testing {
namespace {

using ::testing::IsEmpty;

#ifndef ATTND_TESTS_ON_DEVICE
// Kernels that the self-test does not launch.
struct Exception {
  const char* name;  // the begin of it
  const char* why;
};
constexpr Exception kExceptions[] = {
    {"attnd::cuda::PoolKernel", "no method launches pool"},
    {"attnd::cuda::FftLoadKernel", "beside cuFFT, which has a row of its own"},
    {"attnd::cuda::FftRealKernel", "beside cuFFT"},
    {"attnd::cuda::FindSpread", "beside cuDNN, which has rows of its own"},
    {"attnd::cuda::attend_grad::FindGradSpread", "beside cuDNN"},
};

// Whether a kernel is one of them; counts it.
bool IsException(const std::string& kernel, std::map<std::string, int>* met) {
  for (const Exception& one : kExceptions) {
    if (!kernel.starts_with(one.name)) continue;
    ++(*met)[one.name];
    return true;
  }
  return false;
}

void ExpectEveryKernel(const std::map<std::string, int64_t>& launches) {
  EXPECT_GT(launches.size(), 100u) << "the program is stripped";
  std::map<std::string, int> met;
  for (const auto& [kernel, count] : launches) {
    EXPECT_NE(count > 0, IsException(kernel, &met))
        << kernel << " is launched " << count << " times";
  }
  // A kernel that is gone is no exception.
  for (const Exception& one : kExceptions) {
    EXPECT_GT(met[one.name], 0) << one.name << ": " << one.why;
  }
}
#endif

TEST(SelfTestCuda, EveryPrimitiveAgreesWithTheProcessorAndEveryKernelIsLaunched) {
  CudaDevices found = NewCudaDevices({.retain_bytes = 0, .poison_memory = true});
  ASSERT_EQ(found.why_not, "");
  const auto cpu = NewCpuDevice({.threads = 1});
  ASSERT_TRUE(cpu.ok()) << cpu.status();
#ifndef ATTND_TESTS_ON_DEVICE
  static_cast<void>(emu::TakeLaunches());
#endif
  const SelfTestReport report = SelfTest(*found.devices[0], **cpu);
  EXPECT_TRUE(report.status.ok()) << report.status;
  EXPECT_THAT(report.failed, IsEmpty());
  for (const SelfTestRow& row : report.rows) {
    EXPECT_EQ(row.failure, "") << row.primitive << " of " << row.dtype;
    EXPECT_FALSE(row.is_declined) << row.primitive << " of " << row.dtype;
    EXPECT_GT(row.launches, 0) << row.primitive << " of " << row.dtype;
  }
#ifndef ATTND_TESTS_ON_DEVICE
  ExpectEveryKernel(emu::TakeLaunches());
#endif
}

TEST(SelfTestCuda, WhatIsSwitchedOffIsComposed) {
  const size_t softmax = Launch(SoftmaxArgs()).index();
  CudaDevices found = NewCudaDevices({.retain_bytes = 0, .declined = {softmax}});
  const auto cpu = NewCpuDevice({.threads = 1});
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  const SelfTestReport report = SelfTest(*found.devices.at(0), **cpu);
  EXPECT_TRUE(report.status.ok()) << report.status;
  EXPECT_THAT(report.failed, IsEmpty());
  for (const SelfTestRow& row : report.rows) {
    EXPECT_EQ(row.is_declined, row.primitive == "softmax") << row.primitive;
  }
}

}  // namespace
}  // namespace attnd::testing
