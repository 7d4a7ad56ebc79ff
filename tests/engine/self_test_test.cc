// The self-test of a device: it launches every primitive, agrees with a device that is right, and
// names the primitive of one that is not.
#include "kernels/engine/self_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "kernels/engine/library_test.h"
#include "tests/device/strict_device.h"
#include "tests/plain/cpus.h"
#include "tests/plain/declining_device.h"

namespace attnd::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::unique_ptr<Device> Right() {
  return *NewStrictDevice(
      {.cpu = {.threads = 2, .retain_bytes = 0, .poison_memory = true}, .declined = LaunchSet()});
}

// The float32 result of a launch that is wrong; not given: it has none.
using Wrong = View (*)(const Launch& launch);

View ResultOfFft(const Launch& launch) {
  const auto* const args = std::get_if<FftArgs>(&launch);
  return args == nullptr || args->problems[0].out.dtype != DType::kF32 ? View()
                                                                       : args->problems[0].out;
}
View LseOf16Bits(const Launch& launch) {
  const auto* const args = std::get_if<AttendArgs>(&launch);
  return args == nullptr || args->problems[0].q.dtype == DType::kF32 ? View()
                                                                     : args->problems[0].lse;
}

// Adds `by` to the first number of wrong results, on a device with host memory.
class WrongDevice final : public DecliningDevice {
 public:
  WrongDevice(Device& inner, Wrong wrong, float by)
      : DecliningDevice(inner, LaunchSet()), wrong_(wrong), by_(by) {}

  DeviceStatus Run(Stream& stream, Launch launch) override {
    const View result = stream.is_dry() ? View() : wrong_(launch);
    DeviceStatus status = DecliningDevice::Run(stream, std::move(launch));
    if (result.given()) result.As<float>()[0] += by_;
    return status;
  }

 private:
  const Wrong wrong_;
  const float by_;
};

TEST(SelfTest, LaunchesEveryPrimitiveAndAgreesWithADeviceThatIsRight) {
  const auto device = Right();
  const SelfTestReport report = SelfTest(*device, CpuOf(AvailableIsas().back(), 2));
  EXPECT_TRUE(report.status.ok()) << report.status;
  EXPECT_THAT(report.failed, IsEmpty());
  std::set<std::string> primitives;
  for (const SelfTestRow& row : report.rows) {
    EXPECT_EQ(row.failure, "") << row.primitive;
    EXPECT_GT(row.launches, 0) << row.primitive;
    primitives.insert(row.primitive);
  }
  // No method launches pool.
  EXPECT_EQ(primitives.size(), std::variant_size_v<Launch> - 1)
      << ::testing::PrintToString(primitives);
  EXPECT_EQ(primitives.count("pool"), 0u);
}

TEST(SelfTest, KnowsWhatIsComposed) {
  for (size_t i = 0; i < std::variant_size_v<Launch>; ++i) {
    EXPECT_EQ(HasComposition(i), ComposedLaunches()[i]) << i;
  }
}

TEST(SelfTest, NamesThePrimitiveThatDiffers) {
  Device& cpu = CpuOf(AvailableIsas().back(), 2);
  WrongDevice device(cpu, ResultOfFft, /*by=*/1);
  const SelfTestReport report = SelfTest(device, cpu);
  EXPECT_TRUE(report.status.ok()) << report.status;
  EXPECT_THAT(report.failed, ElementsAre(Launch(FftArgs()).index()));
  EXPECT_TRUE(report.is_lasting);
  for (const SelfTestRow& row : report.rows) {
    if (row.failure.empty()) continue;
    EXPECT_EQ(row.primitive, "fft");
    EXPECT_THAT(row.failure, HasSubstr("differs from the processor by"));
  }
}

// Rounding of 16-bit results explains such a difference, and none of float32.
TEST(SelfTest, Float32ResultsOf16BitTensorsAreHeldToFloat32) {
  Device& cpu = CpuOf(AvailableIsas().back(), 2);
  WrongDevice device(cpu, LseOf16Bits, /*by=*/5e-3f);
  const SelfTestReport report = SelfTest(device, cpu);
  std::set<std::string> failed;
  for (const SelfTestRow& row : report.rows) {
    if (row.failure.empty()) continue;
    EXPECT_THAT(row.failure, HasSubstr("of a tensor of float32, allowed is 0.0002"));
    EXPECT_LT(row.worst_error, 6e-3);
    failed.insert(row.primitive + " " + row.dtype);
  }
  EXPECT_THAT(failed, ElementsAre("attend bfloat16", "attend float16"));
}

// Fails every launch from number `first` on: for good, or for want of memory.
class FailingDevice final : public DecliningDevice {
 public:
  FailingDevice(Device& inner, int first, DeviceStatus::Code code)
      : DecliningDevice(inner, LaunchSet()), left_(first), code_(code) {}

  DeviceStatus Run(Stream& stream, Launch launch) override {
    if (!stream.is_dry() && left_-- <= 0) return {code_, "a launch was made to fail"};
    return DecliningDevice::Run(stream, std::move(launch));
  }
  std::string failure() const override {
    return left_ < 0 && code_ == DeviceStatus::Code::kFailed ? "a launch was made to fail" : "";
  }

 private:
  int left_;
  const DeviceStatus::Code code_;
};

// What has composition fails first: by its rows alone the device would be of use.
TEST(SelfTest, ADeviceThatFailsForGoodIsOfNoUseAndNothingIsKept) {
  Device& cpu = CpuOf(AvailableIsas().back(), 2);
  int64_t least = 0;
  while (true) {
    FailingDevice device(cpu, static_cast<int>(least++), DeviceStatus::Code::kFailed);
    const SelfTestReport report = SelfTest(device, cpu);
    EXPECT_TRUE(report.is_unusable);
    EXPECT_FALSE(report.is_lasting);
    ASSERT_EQ(report.failed.size(), 1u);
    if (HasComposition(report.failed[0])) break;
  }
}

TEST(SelfTest, ADeviceThatFailsInALargeProductIsOfNoUse) {
  Device& cpu = CpuOf(AvailableIsas().back(), 2);
  FailingDevice device(cpu, 0, DeviceStatus::Code::kFailed);
  SelfTestReport report;
  const LibraryTest* const test = LibraryTestOf("matmul (cuBLASLt)");
  ASSERT_NE(test, nullptr);
  RunLibraryTest(*test, device, cpu, &report);
  EXPECT_TRUE(report.is_unusable);
  EXPECT_FALSE(report.is_lasting);
  EXPECT_THAT(report.failed_libraries, ElementsAre("cuBLASLt"));
  EXPECT_TRUE(report.failed.empty());
}

TEST(SelfTest, WhatFailsForWantOfMemoryIsNotKept) {
  Device& cpu = CpuOf(AvailableIsas().back(), 2);
  FailingDevice device(cpu, 1000, DeviceStatus::Code::kNoMemory);
  const SelfTestReport report = SelfTest(device, cpu);
  EXPECT_FALSE(report.is_lasting);
  EXPECT_GT(report.failed.size(), 0u);
}

}  // namespace
}  // namespace attnd::testing
