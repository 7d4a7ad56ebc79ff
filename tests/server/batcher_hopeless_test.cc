// A request that is predicted to miss its deadline is refused; one that may meet it is not.
#include "tests/server/batcher_fixture.h"

namespace attnd {
namespace {

TEST_F(BatcherTest, HopelessWorkIsRefusedWithItsFigures) {
  Start({});
  EXPECT_EQ(Submit({.name = "1", .deadline = 3000ms, .seconds = 1560}),
            absl::DeadlineExceededError("request: the deadline must leave the predicted 1.56e+03 s "
                                        "(0 s of them for requests ahead), got 3 s"));
  EXPECT_THAT(refusals_, ElementsAre(Refusal::kDeadline));
  EXPECT_TRUE(Submit({.name = "2", .deadline = 3000ms, .seconds = 2.9}).ok());
  // "2" of the same client, with an earlier deadline, is ahead.
  EXPECT_EQ(Submit({.name = "3", .deadline = 4000ms, .seconds = 2}),
            absl::DeadlineExceededError("request: the deadline must leave the predicted 4.9 s "
                                        "(2.9 s of them for requests ahead), got 4 s"));
  // Goes first, since its deadline is earlier.
  EXPECT_TRUE(Submit({.name = "4", .deadline = 1000ms, .seconds = 0.5}).ok());
  // Another client does not wait for it.
  EXPECT_TRUE(Submit({.name = "5", .deadline = 4000ms, .seconds = 2, .client = "b"}).ok());
  EXPECT_EQ(refusals_.size(), 2u);
}

// Regression: a small request was refused because of long ones beside which it can start.
TEST_F(BatcherTest, ARequestIsNotBehindThoseItStartsBeside) {
  Start({});
  for (const char* name : {"1", "2", "3"}) {
    ASSERT_TRUE(Submit({.name = name, .bucket = "long", .seconds = 600}).ok());
  }
  EXPECT_THAT(Begin(), ElementsAre("1"));
  clock_.Advance(2s);
  const TimePoint in_10ms = clock_.Now() + 10ms;
  EXPECT_TRUE(batcher_->Admit("a", 0, in_10ms).ok());
  EXPECT_TRUE(Submit({.name = "small", .deadline = 10ms, .seconds = 0.005}).ok());
  EXPECT_THAT(Begin(), ElementsAre("small"));
  EXPECT_TRUE(absl::IsDeadlineExceeded(batcher_->Admit("c", 100, clock_.Now())));
  EXPECT_THAT(refusals_, ElementsAre(Refusal::kDeadline));
}

// Regression: minutes of work of a higher priority caused refusals, but delay a request by at most
// two seconds.
TEST_F(BatcherTest, HigherPrioritiesAreAheadForNoLongerThanThePatience) {
  Start({});
  ASSERT_TRUE(Submit({.name = "1", .priority = 1, .seconds = 600}).ok());
  EXPECT_THAT(Begin(), ElementsAre("1"));
  ASSERT_TRUE(Submit({.name = "2", .bucket = "b", .priority = 5, .seconds = 0.004}).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(batcher_->Admit("b", 0, clock_.Now() + 1999ms)));
  EXPECT_TRUE(batcher_->Admit("b", 0, clock_.Now() + 2001ms).ok());
  EXPECT_TRUE(batcher_->Admit("b", 100, clock_.Now() + 1ms).ok());
  EXPECT_EQ(
      Submit({.name = "3", .deadline = 2000ms, .seconds = 0.01, .client = "b"}),
      absl::DeadlineExceededError("request: the deadline must leave the predicted 2.01 s (2 s "
                                  "of them for requests ahead), got 2 s"));
  EXPECT_TRUE(Submit({.name = "4", .deadline = 2011ms, .seconds = 0.01, .client = "b"}).ok());
}

TEST_F(BatcherTest, TheRunInTheLastPlaceIsAheadOfAll) {
  Start({.max_running = 1});
  ASSERT_TRUE(Submit({.name = "1", .seconds = 30}).ok());
  EXPECT_THAT(Begin(), ElementsAre("1"));
  EXPECT_TRUE(absl::IsDeadlineExceeded(batcher_->Admit("b", 100, clock_.Now() + 10s)));
  EXPECT_TRUE(batcher_->Admit("b", 100, clock_.Now() + 31s).ok());
}

TEST_F(BatcherTest, RequestsThatBecomeHopelessInTheQueueAreDropped) {
  Start({});
  ASSERT_TRUE(Submit({.name = "1", .deadline = 3000ms, .seconds = 2}).ok());
  clock_.Advance(1500ms);
  EXPECT_THAT(Pull(), IsEmpty());
  EXPECT_THAT(answers_, ElementsAre("1 DEADLINE_EXCEEDED"));
  EXPECT_THAT(refusals_, ElementsAre(Refusal::kDeadline));
}

// Half of the predicted seconds must fit until runs of its kind were measured.
TEST_F(BatcherTest, RequestsThatMayBeQuickerThanPredictedAreTried) {
  const Predictions predictions(&clock_);
  Start({.predictions = &predictions});
  EXPECT_TRUE(absl::IsDeadlineExceeded(Submit({.name = "1", .deadline = 999ms, .seconds = 2})));
  ASSERT_TRUE(Submit({.name = "2", .deadline = 1001ms, .seconds = 2}).ok());
  EXPECT_THAT(Pull(), ElementsAre("2"));
  EXPECT_DOUBLE_EQ(batch_.seconds, 2);
  // Requests ahead may be quicker, too.
  ASSERT_TRUE(Submit({.name = "3", .priority = 1, .seconds = 2}).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(Submit({.name = "4", .deadline = 1999ms, .seconds = 2})));
  EXPECT_TRUE(Submit({.name = "5", .deadline = 2001ms, .seconds = 2}).ok());
}

// Regression: requests admitted just in time were begun at the last moment, and half of them missed
// their deadline.
TEST_F(BatcherTest, RequestsAheadCountMoreThanTheirSeconds) {
  Predictions predictions(&clock_);
  Start({.max_batch_requests = 1, .predictions = &predictions});
  for (int i = 0; i < 4; ++i) predictions.Learn(Plan{}, /*predicted=*/1, /*measured=*/1);
  ASSERT_TRUE(Submit({.name = "1", .deadline = 4200ms, .seconds = 4}).ok());
  EXPECT_EQ(Submit({.name = "2", .deadline = 10200ms, .seconds = 7}),
            absl::DeadlineExceededError("request: the deadline must leave the predicted 12 s (5 s "
                                        "of them for requests ahead), got 10.2 s"));
  EXPECT_THAT(Begin(), ElementsAre("1"));
  // It takes twice its seconds, since the machine has other work.
  clock_.Advance(8s);
  End("1");
  ASSERT_TRUE(Submit({.name = "3", .deadline = 8000ms, .seconds = 4}).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(Submit({.name = "4", .deadline = 12200ms, .seconds = 3})));
  EXPECT_TRUE(Submit({.name = "5", .deadline = 12500ms, .seconds = 3}).ok());
}

TEST_F(BatcherTest, LearnedSecondsDecide) {
  Predictions predictions(&clock_);
  Plan kind;
  for (int i = 0; i < 100; ++i) predictions.Learn(kind, /*predicted=*/1, /*measured=*/3);
  Start({.predictions = &predictions});
  // 3 s likely, 0.8 of them for sure.
  EXPECT_TRUE(absl::IsDeadlineExceeded(Submit({.name = "1", .deadline = 2390ms, .seconds = 1})));
  ASSERT_TRUE(Submit({.name = "2", .deadline = 2410ms, .seconds = 1}).ok());
  EXPECT_THAT(Pull(), ElementsAre("2"));
  EXPECT_NEAR(batch_.seconds, 3, 1e-6);
}

// What a server with several devices compares.
TEST_F(BatcherTest, SecondsUntilARequestIsDone) {
  Start({.max_queue_requests = 2});
  Plan plan;
  plan.seconds = 3;
  const auto until_done = [&](int priority = 0, const std::string& client = "a") {
    return batcher_->SecondsUntilDone(client, priority, plan);
  };
  EXPECT_EQ(until_done(), 3);
  ASSERT_TRUE(Submit({.name = "1", .bucket = "long", .seconds = 10}).ok());
  EXPECT_THAT(Begin(), ElementsAre("1"));
  clock_.Advance(4s);
  // It may start beside a run that takes twice as long, and otherwise waits: at most for two
  // seconds, where that lets it start.
  plan.seconds = 2.9;
  EXPECT_EQ(until_done(), 2.9);
  plan.seconds = 5;
  EXPECT_GT(until_done(), 5);
  ASSERT_TRUE(Submit({.name = "2", .seconds = 20}).ok());
  EXPECT_GT(until_done(), 10);
  EXPECT_LT(until_done(/*priority=*/1), until_done());
  ASSERT_TRUE(Submit({.name = "3", .seconds = 20}).ok());
  // No place is left, but for a client with fewer requests.
  EXPECT_EQ(until_done(), std::numeric_limits<double>::infinity());
  EXPECT_LT(until_done(0, "b"), 100);
  batcher_->Close();
  EXPECT_EQ(until_done(0, "b"), std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace attnd
