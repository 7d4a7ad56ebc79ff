// The strict device fails on every use that it is made to detect.
#include "tests/device/strict_device.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <vector>

#include "kernels/core/run_control.h"
#include "tests/device/late_queue.h"
#include "tests/device/test_device.h"

namespace attnd::testing {
namespace {

constexpr int64_t kFloats = 1000;
using Floats = std::array<float, kFloats>;

std::span<std::byte> BytesOf(Floats& x) { return std::as_writable_bytes(std::span<float>(x)); }

class StrictDevice : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  std::shared_ptr<Buffer> NewFloats(Stream& stream) {
    return stream.workspace().Allocate(kFloats * sizeof(float));
  }
  static View ViewOf(const Buffer& buffer, int64_t floats = kFloats) {
    return DenseView(buffer.data(), DType::kF32, {floats});
  }
  // `values` are copied at once.
  DeviceStatus Upload(Stream& stream, const Buffer& to, const Floats& values) {
    const auto source = std::make_shared<const Floats>(values);
    const std::span<const std::byte> pieces[] = {std::as_bytes(std::span<const float>(*source))};
    return device_->Upload(stream, to.data(), pieces, source);
  }
  DeviceStatus Download(Stream& stream, const Buffer& from, Floats* values) {
    return device_->Download(stream, from.data(), BytesOf(*values));
  }
  DeviceStatus Copy(Stream& stream, const View& from, const View& to) {
    return device_->Run(
        stream, ElementwiseArgs{.op = ElementOp::kCopy, .problems = {{.a = from, .out = to}}});
  }
  static Floats Filled(float x) {
    Floats values;
    values.fill(x);
    return values;
  }

  const std::unique_ptr<Device> device_ = NewTestDevice("strict");
  Stream stream_{*device_, &device_->memory()};
};

using StrictDeviceDeathTest = StrictDevice;

TEST_F(StrictDeviceDeathTest, TheHostMayNotReadItsMemory) {
  const auto buffer = NewFloats(stream_);
  ASSERT_TRUE(Upload(stream_, *buffer, Filled(1)).ok());
  volatile float* const data = static_cast<float*>(buffer->data());
  EXPECT_DEATH(static_cast<void>(data[0]), "");
  ASSERT_TRUE(stream_.Wait().ok());
  EXPECT_DEATH(static_cast<void>(data[0]), "");
  EXPECT_DEATH(static_cast<void>(data[kFloats - 1]), "");
}

TEST_F(StrictDeviceDeathTest, TheHostMayNotWriteItsMemory) {
  const auto buffer = NewFloats(stream_);
  ASSERT_TRUE(Upload(stream_, *buffer, Filled(1)).ok());
  volatile float* const data = static_cast<float*>(buffer->data());
  EXPECT_DEATH(data[0] = 1, "");
  ASSERT_TRUE(stream_.Wait().ok());
  EXPECT_DEATH(data[0] = 1, "");
}

TEST_F(StrictDevice, OnlyViewsOfABlockOfItsMemoryAreTaken) {
  const auto own = NewFloats(stream_);
  Floats host = Filled(0);
  const View of_host = DenseView(host.data(), DType::kF32, {kFloats});
  const auto failed = DeviceStatus::Code::kFailed;
  EXPECT_EQ(Copy(stream_, of_host, ViewOf(*own)).code(), failed);
  EXPECT_EQ(Copy(stream_, ViewOf(*own), of_host).code(), failed);
  // Rounded to whole pages, of which there is one.
  const int64_t too_many = Arena::kPage / 4 + 1;
  const auto longer = stream_.workspace().Allocate(4 * too_many);
  EXPECT_EQ(Copy(stream_, ViewOf(*own, too_many), ViewOf(*longer, too_many)).code(), failed);
  auto freed = NewFloats(stream_);
  const View of_freed = ViewOf(*freed);
  ASSERT_TRUE(stream_.Wait().ok());
  freed.reset();
  EXPECT_EQ(Copy(stream_, of_freed, ViewOf(*own)).code(), failed);
  EXPECT_EQ(device_->Download(stream_, host.data(), BytesOf(host)).code(), failed);
  const std::span<const std::byte> pieces[] = {BytesOf(host)};
  EXPECT_EQ(device_->Upload(stream_, host.data(), pieces, nullptr).code(), failed);
  EXPECT_TRUE(Copy(stream_, ViewOf(*longer, kFloats), ViewOf(*own)).ok());
  EXPECT_TRUE(stream_.Wait().ok());
}

TEST_F(StrictDevice, WorkRunsLaterAndInTheOrderOfAsking) {
  const auto a = NewFloats(stream_), b = NewFloats(stream_);
  Floats first = Filled(0), second = Filled(0);
  ASSERT_TRUE(Upload(stream_, *a, Filled(1)).ok());
  ASSERT_TRUE(Copy(stream_, ViewOf(*a), ViewOf(*b)).ok());
  ASSERT_TRUE(Upload(stream_, *a, Filled(2)).ok());
  ASSERT_TRUE(Download(stream_, *b, &first).ok());
  ASSERT_TRUE(Copy(stream_, ViewOf(*a), ViewOf(*b)).ok());
  ASSERT_TRUE(Download(stream_, *b, &second).ok());
  EXPECT_EQ(first, Filled(0));
  ASSERT_TRUE(stream_.Wait().ok());
  EXPECT_EQ(first, Filled(1));
  EXPECT_EQ(second, Filled(2));
}

TEST_F(StrictDevice, AFreedBlockServesAnotherStreamOnceItsWorkHasPassed) {
  Stream other(*device_, &device_->memory());
  auto buffer = NewFloats(stream_);
  const void* const data = buffer->data();
  Floats values = Filled(0);
  ASSERT_TRUE(Upload(stream_, *buffer, Filled(1)).ok());
  ASSERT_TRUE(Download(stream_, *buffer, &values).ok());
  buffer.reset();
  const auto early = NewFloats(other);
  EXPECT_NE(early->data(), data);
  ASSERT_TRUE(Upload(other, *early, Filled(2)).ok());
  ASSERT_TRUE(other.Wait().ok());
  ASSERT_TRUE(stream_.Wait().ok());
  EXPECT_EQ(values, Filled(1));
  EXPECT_EQ(NewFloats(other)->data(), data);
}

TEST_F(StrictDevice, StreamsWaitForThemselvesOnly) {
  Stream other(*device_, &device_->memory());
  const auto a = NewFloats(stream_), b = NewFloats(other);
  Floats of_a = Filled(0), of_b = Filled(0);
  ASSERT_TRUE(Upload(stream_, *a, Filled(1)).ok());
  ASSERT_TRUE(Download(stream_, *a, &of_a).ok());
  ASSERT_TRUE(Upload(other, *b, Filled(2)).ok());
  ASSERT_TRUE(Download(other, *b, &of_b).ok());
  ASSERT_TRUE(other.Wait().ok());
  EXPECT_EQ(of_b, Filled(2));
  EXPECT_EQ(of_a, Filled(0));
  ASSERT_TRUE(stream_.Wait().ok());
  EXPECT_EQ(of_a, Filled(1));
}

// Downloads behind a launch that failed gave what it had left, and uploads went on.
TEST_F(StrictDevice, WorkBehindAFailureIsSkipped) {
  RunControl control;
  Stream stopped(*device_, &device_->memory(), &control);
  const auto a = NewFloats(stopped), b = NewFloats(stopped);
  Floats values = Filled(7);
  ASSERT_TRUE(Upload(stopped, *a, Filled(1)).ok());
  ASSERT_TRUE(Copy(stopped, ViewOf(*a), ViewOf(*b)).ok());
  ASSERT_TRUE(Download(stopped, *b, &values).ok());
  control.Cancel();
  EXPECT_EQ(stopped.Wait().code(), DeviceStatus::Code::kStopped);
  EXPECT_EQ(values, Filled(7));
}

TEST(LateQueue, SkipsWhatFollowsAFailureUntilTheWait) {
  Arena arena;
  LateQueue queue(&arena);
  std::vector<int> done;
  const auto add = [&](int n, bool fails = false) {
    queue.Add([&done, n, fails] {
      done.push_back(n);
      return fails ? DeviceStatus(DeviceStatus::Code::kFailed, "piece") : DeviceStatus();
    });
  };
  add(1);
  add(2, /*fails=*/true);
  add(3);
  add(4, /*fails=*/true);
  WorkProgress& progress = *queue.progress();
  EXPECT_TRUE(progress.WaitFor(1));
  EXPECT_FALSE(progress.WaitFor(3));
  EXPECT_EQ(done, (std::vector<int>{1, 2}));
  EXPECT_FALSE(progress.HasPassed(4));
  // The failure is left to Wait, once.
  EXPECT_EQ(queue.Wait().text(), "piece");
  EXPECT_TRUE(progress.HasPassed(4));
  EXPECT_TRUE(queue.Wait().ok());
  add(5);
  EXPECT_TRUE(queue.Wait().ok());
  EXPECT_EQ(done, (std::vector<int>{1, 2, 5}));
  EXPECT_TRUE(progress.WaitFor(1) && progress.WaitFor(5));
  EXPECT_FALSE(progress.WaitFor(2) || progress.WaitFor(3) || progress.WaitFor(4));
}

TEST(LateQueue, HasPassedEveryPositionWhenItEnds) {
  Arena arena;
  auto queue = std::make_unique<LateQueue>(&arena);
  const std::shared_ptr<WorkProgress> progress = queue->progress();
  int done = 0;
  for (const bool fails : {false, true, false}) {
    queue->Add([&done, fails] {
      ++done;
      return fails ? DeviceStatus(DeviceStatus::Code::kFailed, "piece") : DeviceStatus();
    });
  }
  EXPECT_FALSE(progress->HasPassed(1));
  queue.reset();
  EXPECT_EQ(progress->position(), 3);
  EXPECT_TRUE(progress->HasPassed(3));
  EXPECT_EQ(done, 2);
  EXPECT_TRUE(progress->WaitFor(1));
  EXPECT_FALSE(progress->WaitFor(2) || progress->WaitFor(3));
}

TEST(StrictDeviceWithHostMemory, IsOpenToTheHostAndStillLate) {
  const auto device = *NewStrictDevice({.cpu = {.threads = 1}, .has_host_memory = true});
  Stream stream(*device, &device->memory());
  EXPECT_FALSE(stream.shares_host_memory());
  const auto buffer = stream.workspace().Allocate(4);
  auto* const data = static_cast<float*>(buffer->data());
  *data = 1;
  const float two = 2;
  const std::span<const std::byte> pieces[] = {std::as_bytes(std::span<const float>(&two, 1))};
  ASSERT_TRUE(device->Upload(stream, data, pieces, nullptr).ok());
  EXPECT_EQ(*data, 1);
  ASSERT_TRUE(stream.Wait().ok());
  EXPECT_EQ(*data, 2);
}

}  // namespace
}  // namespace attnd::testing
