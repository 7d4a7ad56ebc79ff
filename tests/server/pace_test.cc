// The pace of the machine, learned from the runs that end.
#include "server/pace.h"

#include <gtest/gtest.h>

#include <chrono>

namespace attnd {
namespace {

using namespace std::chrono_literals;

constexpr TimePoint kNow{1000s};

TEST(Pace, IsOneAtFirstAndWherePredictionsHold) {
  Pace pace;
  EXPECT_DOUBLE_EQ(pace.ValueAt(kNow), 1);
  for (int i = 0; i < 100; ++i) pace.Count(0.02, 0.02, kNow);
  EXPECT_NEAR(pace.ValueAt(kNow), 1, 1e-9);
}

TEST(Pace, FollowsTheMachine) {
  Pace pace;
  for (int i = 0; i < 400; ++i) pace.Count(0.02, 0.04, kNow);
  EXPECT_NEAR(pace.ValueAt(kNow), 0.5, 0.01);
  for (int i = 0; i < 800; ++i) pace.Count(0.02, 0.02, kNow);
  EXPECT_NEAR(pace.ValueAt(kNow), 1, 0.01);
}

TEST(Pace, IsForgotten) {
  Pace pace;
  for (int i = 0; i < 400; ++i) pace.Count(0.02, 0.04, kNow);
  EXPECT_LT(pace.ValueAt(kNow + Pace::kValid), 0.6);
  EXPECT_DOUBLE_EQ(pace.ValueAt(kNow + Pace::kValid + 1ms), 1);
}

TEST(Pace, StaysWithinItsBounds) {
  Pace pace;
  pace.Count(600, 0.001, kNow);
  EXPECT_DOUBLE_EQ(pace.ValueAt(kNow), 1);
  for (int i = 0; i < 100; ++i) pace.Count(0.01, 10, kNow);
  EXPECT_DOUBLE_EQ(pace.ValueAt(kNow), Pace::kLeast);
}

TEST(Pace, ShortRunsAreIgnored) {
  Pace pace;
  for (int i = 0; i < 100; ++i) pace.Count(0.001, 1, kNow);
  EXPECT_DOUBLE_EQ(pace.ValueAt(kNow), 1);
}

}  // namespace
}  // namespace attnd
