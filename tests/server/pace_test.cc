// How fast predicted seconds pass, as learned from the runs that end.
#include "server/pace.h"

#include <gtest/gtest.h>

namespace attnd {
namespace {

TEST(Pace, IsOneAtFirstAndWherePredictionsHold) {
  Pace pace;
  EXPECT_DOUBLE_EQ(pace.value(), 1);
  for (int i = 0; i < 100; ++i) pace.Count(0.02, 0.02);
  EXPECT_NEAR(pace.value(), 1, 1e-9);
}

TEST(Pace, FollowsWhatTheMachineDoes) {
  Pace pace;
  for (int i = 0; i < 400; ++i) pace.Count(0.02, 0.04);
  EXPECT_NEAR(pace.value(), 0.5, 0.01);
  for (int i = 0; i < 800; ++i) pace.Count(0.02, 0.02);
  EXPECT_NEAR(pace.value(), 1, 0.01);
}

// Of two that run beside each other the one ends soon after the other.
TEST(Pace, RunsBesideEachOtherCountTogether) {
  Pace pace;
  for (int i = 0; i < 400; ++i) {
    pace.Count(0.02, 0.079);
    pace.Count(0.02, 0.001);
  }
  EXPECT_NEAR(pace.value(), 0.5, 0.02);
}

TEST(Pace, StaysWithinItsBounds) {
  Pace pace;
  pace.Count(600, 0.001);
  EXPECT_DOUBLE_EQ(pace.value(), 1);
  for (int i = 0; i < 100; ++i) pace.Count(0.01, 10);
  EXPECT_DOUBLE_EQ(pace.value(), Pace::kLeast);
}

TEST(Pace, ShortRunsTellNothing) {
  Pace pace;
  for (int i = 0; i < 100; ++i) pace.Count(0.001, 1);
  EXPECT_DOUBLE_EQ(pace.value(), 1);
}

}  // namespace
}  // namespace attnd
