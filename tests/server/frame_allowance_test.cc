// Bounds of frames that carry nothing, millions of which would occupy the polling thread for
// seconds.
#include "server/frame_allowance.h"

#include <gtest/gtest.h>

namespace attnd {
namespace {

using std::chrono::seconds;
constexpr FrameAllowance::TimePoint kStart{seconds(1000)};

TEST(TokenBucket, BeginsFullAndFillsWithTime) {
  TokenBucket bucket(10, 2);
  bucket.Refill(kStart);
  EXPECT_EQ(bucket.Take(4), 4);
  EXPECT_EQ(bucket.Take(9), 6);
  bucket.Refill(kStart + seconds(3));
  EXPECT_EQ(bucket.Take(9), 6);
  bucket.Refill(kStart + seconds(100));
  EXPECT_EQ(bucket.Take(99), 10);
}

TEST(FrameAllowance, OwnThenSharedThenOver) {
  SharedFrames shared;
  FrameAllowance first, second;
  const auto all = static_cast<int64_t>(FrameAllowance::kControl + SharedFrames::kControl);
  EXPECT_TRUE(first.Take({.control = all}, &shared, kStart));
  EXPECT_FALSE(first.Take({.control = 1}, &shared, kStart));
  // Each connection has a small allowance of its own, separate for the two kinds.
  const auto own = static_cast<int64_t>(FrameAllowance::kControl);
  EXPECT_TRUE(second.Take({.control = own, .small = 1}, &shared, kStart));
  EXPECT_FALSE(second.Take({.control = 1}, &shared, kStart));
  // The allowance refills with time.
  EXPECT_TRUE(second.Take({.control = 500}, &shared, kStart + seconds(1)));
  EXPECT_FALSE(second.Take({.control = 1000}, &shared, kStart + seconds(1)));
}

TEST(FrameAllowance, StreamsAndBytesEarnSmallFramesOnly) {
  SharedFrames shared;
  EXPECT_FALSE(FrameAllowance().Take({.small = 1 << 30}, &shared, kStart));
  FrameAllowance allowance;
  EXPECT_TRUE(allowance.Take({.small = 256}, &shared, kStart));
  EXPECT_FALSE(allowance.Take({.small = 1}, &shared, kStart));
  allowance.Earn(/*streams=*/100, /*bytes=*/0);
  EXPECT_TRUE(allowance.TakeEarned({.small = 400}).empty());
  EXPECT_EQ(allowance.TakeEarned({.small = 1}).small, 1);
  // Small pieces of bytes add up.
  for (int i = 0; i < 1 << 16; ++i) allowance.Earn(0, 64);
  EXPECT_EQ(allowance.TakeEarned({.control = 7, .small = 1025}).small, 1);
  EXPECT_EQ(allowance.TakeEarned({.control = 7}).control, 7);
  // Earned frames are bounded.
  allowance.Earn(0, int64_t{1} << 50);
  EXPECT_EQ(allowance.TakeEarned({.small = 1 << 30}).small,
            (1 << 30) - FrameAllowance::kMostEarned);
}

}  // namespace
}  // namespace attnd
