// The CUDA device passes the self-test with which a server starts.
#include "kernels/engine/self_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cuda/cuda.h"

namespace attnd::testing {
namespace {

using ::testing::IsEmpty;

TEST(SelfTestCuda, EveryPrimitiveAgreesWithTheProcessor) {
  CudaDevices found = NewCudaDevices({.retain_bytes = 0, .poison_memory = true});
  ASSERT_EQ(found.why_not, "");
  const auto cpu = NewCpuDevice({.threads = 1});
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  const SelfTestReport report = SelfTest(*found.devices[0], **cpu);
  EXPECT_TRUE(report.status.ok()) << report.status;
  EXPECT_THAT(report.failed, IsEmpty());
  for (const SelfTestRow& row : report.rows) {
    EXPECT_EQ(row.failure, "") << row.primitive << " of " << row.dtype;
    EXPECT_FALSE(row.is_declined) << row.primitive << " of " << row.dtype;
    EXPECT_GT(row.launches, 0) << row.primitive << " of " << row.dtype;
  }
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
