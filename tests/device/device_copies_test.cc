#include "kernels/device/device_copies.h"

#include <gtest/gtest.h>

#include <atomic>

#include "kernels/device/pattern.h"
#include "tests/device/late_queue.h"
#include "tests/device/test_device.h"

namespace attnd::testing {
namespace {

class DeviceCopiesTest : public ::testing::Test {
 protected:
  // The copy that `stream` gets: work of the stream writes `value` to it, or fails.
  std::shared_ptr<const std::atomic<int>> Of(Stream& stream, int value, bool fails = false) {
    return std::static_pointer_cast<const std::atomic<int>>(pattern_->copies->Of(stream, [&] {
      ++made_;
      const auto copy = std::make_shared<std::atomic<int>>(0);
      const auto write = [=] {
        if (fails) return DeviceStatus(DeviceStatus::Code::kFailed, "no copy");
        *copy = value;
        return DeviceStatus();
      };
      if (stream.queue() == nullptr) {
        EXPECT_TRUE(write().ok());
      } else {
        static_cast<LateQueue&>(*stream.queue()).Add(write);
      }
      return copy;
    }));
  }

  const std::unique_ptr<Device> device_ = NewTestDevice("strict"), plain_ = NewTestDevice("plain");
  Stream a_{*device_, &device_->memory()}, b_{*device_, &device_->memory()};
  Stream plain_stream_{*plain_, &plain_->memory()};
  std::unique_ptr<Pattern> pattern_ = std::make_unique<Pattern>();
  int made_ = 0;
};

TEST_F(DeviceCopiesTest, EachDeviceMakesOneWhichGoesWithThePattern) {
  const std::weak_ptr<const std::atomic<int>> first = Of(a_, 1);
  EXPECT_EQ(Of(a_, 2), first.lock());
  EXPECT_TRUE(a_.Wait().ok());
  EXPECT_EQ(Of(a_, 2), first.lock());
  EXPECT_EQ(Of(b_, 2), first.lock());
  EXPECT_EQ(made_, 1);
  EXPECT_NE(Of(plain_stream_, 3), first.lock());
  EXPECT_EQ(*Of(plain_stream_, 4), 3);
  EXPECT_EQ(made_, 2);
  // A copy of the pattern has none of them.
  const Pattern other = *pattern_;
  other.copies->Of(a_, [&]() -> std::shared_ptr<const void> {
    ++made_;
    return std::make_shared<int>(0);
  });
  EXPECT_EQ(made_, 3);
  EXPECT_FALSE(first.expired());
  pattern_.reset();
  EXPECT_TRUE(first.expired());
}

TEST_F(DeviceCopiesTest, AnotherStreamGetsWhatIsWritten) {
  const auto of_a = Of(a_, 1);
  EXPECT_EQ(*of_a, 0);  // its own order needs no wait
  EXPECT_EQ(*Of(a_, 1), 0);
  EXPECT_EQ(*Of(b_, 2), 1);
  EXPECT_EQ(made_, 1);
}

// A stream would compute with a copy that the failure of another has left unwritten.
TEST_F(DeviceCopiesTest, AFailedCopyIsMadeAgain) {
  Of(a_, 1, /*fails=*/true);
  const auto of_b = Of(b_, 2);
  EXPECT_EQ(made_, 2);
  EXPECT_TRUE(b_.Wait().ok());
  EXPECT_EQ(*of_b, 2);
  // The failure is still that of the stream which asked.
  EXPECT_FALSE(a_.Wait().ok());
  EXPECT_EQ(*Of(a_, 3), 2);
}

TEST_F(DeviceCopiesTest, ASkippedCopyIsMadeAgainByItsStream) {
  static_cast<LateQueue&>(*a_.queue()).Add([] {
    return DeviceStatus(DeviceStatus::Code::kFailed, "before the copy");
  });
  Of(a_, 1);
  EXPECT_FALSE(a_.Wait().ok());
  const auto again = Of(a_, 2);
  EXPECT_TRUE(a_.Wait().ok());
  EXPECT_EQ(*again, 2);
  EXPECT_EQ(made_, 2);
}

// A pattern in the cache kept the queue of the stream that had made its copy: a thread or a CUDA
// stream each.
TEST_F(DeviceCopiesTest, ACopyOfAStreamThatHasEndedIsUsedAndDoesNotKeepItsQueue) {
  auto ended = std::make_unique<Stream>(*device_, &device_->memory());
  const std::weak_ptr<WorkQueue> queue = ended->queue();
  const auto copy = Of(*ended, 1);
  ended.reset();
  EXPECT_TRUE(queue.expired());
  EXPECT_EQ(Of(a_, 2), copy);
  EXPECT_EQ(*copy, 1);
  EXPECT_EQ(Of(b_, 3), copy);
  EXPECT_EQ(made_, 1);
}

TEST_F(DeviceCopiesTest, ACopyInDeviceMemoryDoesNotKeepTheQueueOfItsStream) {
  auto ended = std::make_unique<Stream>(*device_, &device_->memory());
  const std::weak_ptr<WorkQueue> queue = ended->queue();
  const auto upload = [&]() -> std::shared_ptr<const void> {
    const auto buffer = device_->memory().Allocate(4, ended->queue());
    const int value = 1;
    const std::span<const std::byte> pieces[] = {std::as_bytes(std::span<const int>(&value, 1))};
    EXPECT_TRUE(device_->Upload(*ended, buffer->data(), pieces, nullptr).ok());
    EXPECT_TRUE(ended->Wait().ok());
    return buffer;
  };
  EXPECT_NE(pattern_->copies->Of(*ended, upload), nullptr);
  ended.reset();
  EXPECT_TRUE(queue.expired());
}

TEST_F(DeviceCopiesTest, ACopyThatItsStreamFailedToMakeBeforeItEndedIsMadeAgain) {
  auto ended = std::make_unique<Stream>(*device_, &device_->memory());
  Of(*ended, 1, /*fails=*/true);
  ended.reset();
  const auto again = Of(a_, 2);
  EXPECT_EQ(made_, 2);
  EXPECT_TRUE(a_.Wait().ok());
  EXPECT_EQ(*again, 2);
  EXPECT_EQ(Of(b_, 3), again);
  EXPECT_EQ(made_, 2);
}

TEST_F(DeviceCopiesTest, NoCopyIsAskedForAgain) {
  int asked = 0;
  const auto none = [&]() -> std::shared_ptr<const void> {
    ++asked;
    return nullptr;
  };
  EXPECT_EQ(pattern_->copies->Of(a_, none), nullptr);
  EXPECT_EQ(pattern_->copies->Of(a_, none), nullptr);
  EXPECT_EQ(asked, 2);
}

}  // namespace
}  // namespace attnd::testing
