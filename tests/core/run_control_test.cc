// The end of a run, and what is left of its prediction.
#include "kernels/core/run_control.h"

#include <gtest/gtest.h>

namespace attnd {
namespace {

using std::chrono::hours;
using std::chrono::seconds;

TEST(RunControl, IsStoppedByACancelOrByItsEnd) {
  RunControl cancelled, ended, goes_on;
  goes_on.StopAt(RunControl::Clock::now() + hours(1));
  EXPECT_FALSE(cancelled.stopped());
  cancelled.Cancel();
  cancelled.Cancel();
  ended.StopAt(RunControl::Clock::now());
  EXPECT_TRUE(cancelled.stopped());
  EXPECT_TRUE(ended.stopped());
  EXPECT_FALSE(goes_on.stopped());
}

// A run that waited for others was ended as if it had taken too long itself.
TEST(RunControl, TimeSpentWaitingForOthersIsNotItsOwn) {
  static RunControl::Clock::time_point now;
  RunControl run(/*priority=*/0, /*predicted_seconds=*/8, [] { return now; });
  run.AddWaited(seconds(100));
  run.StopAfter(seconds(10));
  run.AddWaited(seconds(5));
  now += seconds(14);
  EXPECT_FALSE(run.stopped());
  now += seconds(1);
  EXPECT_TRUE(run.stopped());
}

TEST(RunControl, WaitingIsHeldAgainstThePrediction) {
  RunControl run(/*priority=*/0, /*predicted_seconds=*/8), unknown;
  EXPECT_DOUBLE_EQ(run.waited_share(), 0);
  run.AddWaited(seconds(2));
  EXPECT_DOUBLE_EQ(run.waited_share(), 0.25);
  run.AddWaited(seconds(100));
  EXPECT_DOUBLE_EQ(run.waited_share(), 1);
  EXPECT_DOUBLE_EQ(unknown.waited_share(), 0);
  unknown.AddWaited(seconds(1));
  EXPECT_DOUBLE_EQ(unknown.waited_share(), 1);
}

// A run that was seen stopped has left out items: a later end must not make its result count.
TEST(RunControl, StaysStoppedWhenItsEndIsMoved) {
  RunControl run;
  run.StopAt(RunControl::Clock::now());
  ASSERT_TRUE(run.stopped());
  run.StopAt(RunControl::Clock::now() + hours(1));
  EXPECT_TRUE(run.stopped());
}

TEST(RunControl, RemainingFallsByTheTimeSpentDownToAnEighth) {
  RunControl run(/*priority=*/3, /*predicted_seconds=*/8);
  EXPECT_EQ(run.priority(), 3);
  EXPECT_DOUBLE_EQ(run.RemainingSeconds(/*threads=*/2), 8);
  run.AddSpent(seconds(4));
  EXPECT_DOUBLE_EQ(run.RemainingSeconds(2), 6);
  EXPECT_DOUBLE_EQ(run.spent_seconds(), 4);
  run.AddSpent(seconds(12));
  EXPECT_DOUBLE_EQ(run.RemainingSeconds(2), 1);
}

// A run of minutes whose prediction was milliseconds stayed in front of all others.
TEST(RunControl, ARunThatTakesLongerThanPredictedIsNotShort) {
  RunControl run(/*priority=*/0, /*predicted_seconds=*/0.001);
  run.AddSpent(seconds(20));
  EXPECT_NEAR(run.RemainingSeconds(/*threads=*/2), 10, 0.01);
}

TEST(RunControl, CheckPointsSeeTheInnermostScope) {
  RunControl outer, inner;
  inner.Cancel();
  EXPECT_FALSE(CheckPoint());
  const RunScope host(&outer);
  EXPECT_FALSE(CheckPoint());
  {
    const RunScope item(&inner);
    EXPECT_TRUE(CheckPoint());
  }
  EXPECT_FALSE(CheckPoint());
  outer.Cancel();
  EXPECT_TRUE(CheckPoint());
}

}  // namespace
}  // namespace attnd
