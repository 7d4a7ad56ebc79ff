// What is learned about predicted seconds, and what an outlier does to it.
#include "server/predictions.h"

#include <gtest/gtest.h>

#include "tests/server/puppet_method.h"

namespace attnd {
namespace {

class PredictionsTest : public testing::Test {
 protected:
  PredictionsTest() {
    plan_.method = &method_;
    plan_.seconds = 2;
  }
  PuppetMethod method_;
  Plan plan_;
  Predictions predictions_;
};

TEST_F(PredictionsTest, KnowsNothingAtFirst) {
  EXPECT_DOUBLE_EQ(predictions_.Likely(plan_), 2);
  EXPECT_DOUBLE_EQ(predictions_.Sure(plan_), 0.5);
}

TEST_F(PredictionsTest, LearnsTheRatioOfItsKind) {
  for (int i = 0; i < 40; ++i) predictions_.Learn(plan_, /*predicted=*/1, /*measured=*/3);
  EXPECT_NEAR(predictions_.Likely(plan_), 6, 0.01);
  EXPECT_DOUBLE_EQ(predictions_.Sure(plan_), 0.8);
  Plan backward;
  backward.method = &method_;
  backward.direction = Direction::kBackward;
  backward.seconds = 2;
  EXPECT_DOUBLE_EQ(predictions_.Likely(backward), 2);
}

// A request that the idle machine would have done in time was refused because of one slow run.
TEST_F(PredictionsTest, OneOutlierMakesNothingHopeless) {
  predictions_.Learn(plan_, /*predicted=*/1, /*measured=*/1000);
  EXPECT_LT(predictions_.Likely(plan_) * predictions_.Sure(plan_), 2);
  Predictions settled;
  for (int i = 0; i < 40; ++i) settled.Learn(plan_, 1, 1);
  settled.Learn(plan_, 1, 1000);
  EXPECT_LT(settled.Likely(plan_) * settled.Sure(plan_), 3);
}

TEST_F(PredictionsTest, StaysWithinItsBounds) {
  for (int i = 0; i < 100; ++i) predictions_.Learn(plan_, 1, 1e6);
  EXPECT_NEAR(predictions_.Likely(plan_), 2 * Predictions::kMost, 1e-6);
  for (int i = 0; i < 200; ++i) predictions_.Learn(plan_, 1, 1e-6);
  EXPECT_NEAR(predictions_.Likely(plan_), 2 * Predictions::kLeast, 1e-6);
}

// The shortest whose ratio can make it long enough to tell.
TEST_F(PredictionsTest, TheRatioCountsForShortRequestsToo) {
  for (int i = 0; i < 100; ++i) predictions_.Learn(plan_, 1, 1e6);
  plan_.seconds = Predictions::kShort / Predictions::kMost;
  EXPECT_NEAR(predictions_.Likely(plan_), Predictions::kShort, 1e-6);
  plan_.seconds /= 2;
  EXPECT_DOUBLE_EQ(predictions_.Likely(plan_), Predictions::kShort / Predictions::kMost / 2);
}

TEST_F(PredictionsTest, RunsThatAreTooShortToTellAreIgnored) {
  for (int i = 0; i < 40; ++i) predictions_.Learn(plan_, 1e-6, 1e-3);
  EXPECT_DOUBLE_EQ(predictions_.Likely(plan_), 2);
}

}  // namespace
}  // namespace attnd
