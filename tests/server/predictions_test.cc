// How predictions learn, and how little an outlier changes them.
#include "server/predictions.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

#include "tests/server/fake_clock.h"
#include "tests/server/puppet_method.h"

namespace attnd {
namespace {

class PredictionsTest : public testing::Test {
 protected:
  PredictionsTest() {
    plan_.method = &method_;
    plan_.seconds = 2;
  }
  bool IsKnown() const {
    const PredictedSeconds seconds = predictions_.Of(plan_);
    const bool is_known = seconds.ahead > seconds.likely;
    EXPECT_DOUBLE_EQ(seconds.sure, seconds.likely * (is_known ? 0.8 : 0.5));
    EXPECT_DOUBLE_EQ(seconds.ahead, seconds.likely * (is_known ? 1.25 : 0.5));
    return is_known;
  }
  PuppetMethod method_;
  Plan plan_;
  FakeClock clock_;
  Predictions predictions_{&clock_};
};

TEST_F(PredictionsTest, HasNoMeasurementsAtFirst) {
  EXPECT_DOUBLE_EQ(predictions_.Of(plan_).likely, 2);
  EXPECT_FALSE(IsKnown());
}

// Regression: the measured seconds of a slow device were predicted for every other device.
TEST_F(PredictionsTest, LearnsOfEachDeviceAlone) {
  plan_.device = 1;
  for (int i = 0; i < 40; ++i) predictions_.Learn(plan_, /*predicted=*/1, /*measured=*/3);
  EXPECT_NEAR(predictions_.Of(plan_).likely, 6, 1e-3);
  plan_.device = 0;
  EXPECT_DOUBLE_EQ(predictions_.Of(plan_).likely, 2);
  EXPECT_FALSE(IsKnown());
}

// Gradients that a library adds up in any order are those of other kernels.
TEST_F(PredictionsTest, LearnsOfGradientsInAnyOrderAlone) {
  plan_.is_deterministic = false;
  for (int i = 0; i < 40; ++i) predictions_.Learn(plan_, /*predicted=*/1, /*measured=*/3);
  EXPECT_NEAR(predictions_.Of(plan_).likely, 6, 1e-3);
  plan_.is_deterministic = true;
  EXPECT_DOUBLE_EQ(predictions_.Of(plan_).likely, 2);
}

TEST_F(PredictionsTest, LearnsTheRatioOfItsKind) {
  for (int i = 0; i < 40; ++i) predictions_.Learn(plan_, /*predicted=*/1, /*measured=*/3);
  EXPECT_NEAR(predictions_.Of(plan_).likely, 6, 0.01);
  EXPECT_TRUE(IsKnown());
  Plan backward;
  backward.method = &method_;
  backward.direction = Direction::kBackward;
  backward.seconds = 2;
  EXPECT_DOUBLE_EQ(predictions_.Of(backward).likely, 2);
}

// Regression: requests that an idle machine could do in time were refused because of one slow run.
TEST_F(PredictionsTest, OneOutlierMakesNothingHopeless) {
  predictions_.Learn(plan_, /*predicted=*/1, /*measured=*/1000);
  EXPECT_LT(predictions_.Of(plan_).sure, 2);
  Predictions settled(&clock_);
  for (int i = 0; i < 40; ++i) settled.Learn(plan_, 1, 1);
  settled.Learn(plan_, 1, 1000);
  EXPECT_LT(settled.Of(plan_).sure, 3);
}

// Regression: requests refused because of slow runs were never measured again, so refused for ever.
TEST_F(PredictionsTest, IsForgottenUnlessItIsMeasuredAgain) {
  for (int i = 0; i < 40; ++i) predictions_.Learn(plan_, /*predicted=*/1, /*measured=*/4);
  clock_.Advance(Predictions::kHalfLife);
  EXPECT_NEAR(predictions_.Of(plan_).likely, 4, 0.01);
  EXPECT_TRUE(IsKnown());
  clock_.Advance(std::chrono::milliseconds(1));
  EXPECT_FALSE(IsKnown());
  clock_.Advance(20 * Predictions::kHalfLife);
  EXPECT_NEAR(predictions_.Of(plan_).likely, 2, 0.01);
  // The next measurement counts like the first one.
  predictions_.Learn(plan_, 1, 4);
  EXPECT_NEAR(predictions_.Of(plan_).likely, 2 * std::pow(4, 0.25), 0.01);
  EXPECT_TRUE(IsKnown());
}

TEST_F(PredictionsTest, StaysWithinItsBounds) {
  for (int i = 0; i < 100; ++i) predictions_.Learn(plan_, 1, 1e6);
  EXPECT_NEAR(predictions_.Of(plan_).likely, 2 * Predictions::kMost, 1e-6);
  for (int i = 0; i < 200; ++i) predictions_.Learn(plan_, 1, 1e-6);
  EXPECT_NEAR(predictions_.Of(plan_).likely, 2 * Predictions::kLeast, 1e-6);
}

// Down to the shortest request that the ratio can make longer than kShort.
TEST_F(PredictionsTest, TheRatioCountsForShortRequestsToo) {
  for (int i = 0; i < 100; ++i) predictions_.Learn(plan_, 1, 1e6);
  plan_.seconds = Predictions::kShort / Predictions::kMost;
  EXPECT_NEAR(predictions_.Of(plan_).likely, Predictions::kShort, 1e-6);
  plan_.seconds /= 2;
  EXPECT_DOUBLE_EQ(predictions_.Of(plan_).likely, Predictions::kShort / Predictions::kMost / 2);
}

TEST_F(PredictionsTest, RunsThatAreTooShortToMeasureAreIgnored) {
  for (int i = 0; i < 40; ++i) predictions_.Learn(plan_, 1e-6, 1e-3);
  EXPECT_DOUBLE_EQ(predictions_.Of(plan_).likely, 2);
}

}  // namespace
}  // namespace attnd
