// The queue on a fake clock with a puppet lane: which requests run together, when, and which are
// refused.
#include "absl/strings/str_cat.h"
#include "tests/server/batcher_fixture.h"

namespace attnd {
namespace {

TEST_F(BatcherTest, OneBatchIsOneBucketOldestFirst) {
  Start({});
  for (const char* name : {"a1", "b1", "a2", "c1", "b2", "a3"}) {
    ASSERT_TRUE(Submit({.name = name, .bucket = std::string(1, name[0])}).ok());
  }

  EXPECT_THAT(Pull(), ElementsAre("a1", "a2", "a3"));
  EXPECT_EQ(reason_, Batcher::Reason::kIdle);
  EXPECT_THAT(Pull(), ElementsAre("b1", "b2"));
  EXPECT_THAT(Pull(), ElementsAre("c1"));
  EXPECT_THAT(Pull(), IsEmpty());
}

TEST_F(BatcherTest, AnIdleLaneDoesNotWaitForCompany) {
  Start({});
  ASSERT_TRUE(Submit({.name = "a1"}).ok());
  EXPECT_THAT(Pull(), ElementsAre("a1"));
  ASSERT_TRUE(Submit({.name = "a2"}).ok());
  EXPECT_THAT(Pull(), ElementsAre("a2"));
}

TEST_F(BatcherTest, BestBucketIsPriorityThenDeadlineThenAge) {
  Start({});
  ASSERT_TRUE(Submit({.name = "old", .bucket = "a"}).ok());
  ASSERT_TRUE(Submit({.name = "later", .bucket = "b", .deadline = 200ms}).ok());
  ASSERT_TRUE(Submit({.name = "sooner", .bucket = "c", .deadline = 100ms}).ok());
  ASSERT_TRUE(Submit({.name = "young", .bucket = "d"}).ok());
  ASSERT_TRUE(Submit({.name = "urgent", .bucket = "e", .priority = 1}).ok());

  EXPECT_THAT(Pull(), ElementsAre("urgent"));
  EXPECT_THAT(Pull(), ElementsAre("sooner"));
  EXPECT_THAT(Pull(), ElementsAre("later"));
  EXPECT_THAT(Pull(), ElementsAre("old"));
  EXPECT_THAT(Pull(), ElementsAre("young"));
}

TEST_F(BatcherTest, WithinABucketTheSameOrder) {
  Start({.max_batch_requests = 3});
  ASSERT_TRUE(Submit({.name = "old"}).ok());
  ASSERT_TRUE(Submit({.name = "later", .deadline = 200ms}).ok());
  ASSERT_TRUE(Submit({.name = "sooner", .deadline = 100ms}).ok());
  ASSERT_TRUE(Submit({.name = "low", .priority = -1, .deadline = 50ms}).ok());
  ASSERT_TRUE(Submit({.name = "urgent", .priority = 1}).ok());

  EXPECT_THAT(Pull(), ElementsAre("urgent", "sooner", "later"));
  EXPECT_THAT(Pull(), ElementsAre("old", "low"));
}

TEST_F(BatcherTest, TheCapOfRequestsClosesABatch) {
  Start({.max_batch_requests = 2});
  for (const char* name : {"1", "2", "3"}) ASSERT_TRUE(Submit({.name = name}).ok());
  EXPECT_THAT(Pull(), ElementsAre("1", "2"));
  EXPECT_EQ(reason_, Batcher::Reason::kFull);
  EXPECT_THAT(Pull(), ElementsAre("3"));
  EXPECT_EQ(reason_, Batcher::Reason::kIdle);
}

TEST_F(BatcherTest, TheCapOfBytesClosesABatchAndALargerRequestRunsAlone) {
  Start({.max_batch_bytes = 100});
  ASSERT_TRUE(Submit({.name = "60", .bytes = 60}).ok());
  ASSERT_TRUE(Submit({.name = "40", .bytes = 40}).ok());
  ASSERT_TRUE(Submit({.name = "1", .bytes = 1}).ok());
  ASSERT_TRUE(Submit({.name = "500", .bytes = 500}).ok());
  ASSERT_TRUE(Submit({.name = "2", .bytes = 2}).ok());

  EXPECT_THAT(Pull(), ElementsAre("60", "40"));
  EXPECT_EQ(reason_, Batcher::Reason::kFull);
  EXPECT_THAT(Pull(), ElementsAre("1"));
  EXPECT_THAT(Pull(), ElementsAre("500"));
  EXPECT_THAT(Pull(), ElementsAre("2"));
  EXPECT_EQ(reason_, Batcher::Reason::kIdle);
}

TEST_F(BatcherTest, TheCapOfPredictedSecondsKeepsALongOneFromHoldingUpMany) {
  Start({.max_batch_seconds = 1.0});
  ASSERT_TRUE(Submit({.name = "long", .seconds = 30}).ok());
  ASSERT_TRUE(Submit({.name = "s1", .seconds = 0.5}).ok());
  ASSERT_TRUE(Submit({.name = "s2", .seconds = 0.5}).ok());
  ASSERT_TRUE(Submit({.name = "s3", .seconds = 0.5}).ok());

  EXPECT_THAT(Pull(), ElementsAre("long"));
  EXPECT_THAT(Pull(), ElementsAre("s1", "s2"));
  EXPECT_THAT(Pull(), ElementsAre("s3"));
}

// A steady stream of priority 2 must not starve a request of priority 0.
TEST_F(BatcherTest, ARequestGainsOnePriorityForEachSecondItWaits) {
  Start({.max_batch_requests = 1});
  ASSERT_TRUE(Submit({.name = "low", .bucket = "low"}).ok());
  std::vector<std::string> order;
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(
        Submit(
            {.name = absl::StrCat("high", i), .bucket = "high", .priority = 2, .deadline = 10000ms})
            .ok());
    for (const std::string& name : Pull()) order.push_back(name);
    clock_.Advance(1s);
  }
  // After 2 s it has priority 2 but no deadline; after 3 s it is ahead.
  EXPECT_THAT(order, ElementsAre("high0", "high1", "high2", "low", "high3"));
}

TEST_F(BatcherTest, SweepAnswersTheExpiredAtTheirDeadlineAndNotBefore) {
  Start({});
  ASSERT_TRUE(Submit({.name = "10ms", .deadline = 10ms, .bytes = 7}).ok());
  ASSERT_TRUE(Submit({.name = "20ms", .deadline = 20ms, .bytes = 5}).ok());

  clock_.Advance(10ms - 1ns);
  batcher_->Sweep();
  EXPECT_THAT(answers_, IsEmpty());

  clock_.Advance(1ns);
  batcher_->Sweep();
  EXPECT_THAT(answers_, ElementsAre("10ms DEADLINE_EXCEEDED"));
  EXPECT_DOUBLE_EQ(waited_["10ms"], 0.010);
  EXPECT_THAT(refusals_, ElementsAre(Refusal::kDeadline));
  EXPECT_EQ(batcher_->depth().requests, 1);
  EXPECT_EQ(batcher_->depth().bytes, 5);
  EXPECT_THAT(Pull(), ElementsAre("20ms"));
}

TEST_F(BatcherTest, TheExpiredAndTheCancelledAreNotHandedOut) {
  Start({});
  ASSERT_TRUE(Submit({.name = "expires", .deadline = 5ms}).ok());
  ASSERT_TRUE(Submit({.name = "cancelled"}).ok());
  ASSERT_TRUE(Submit({.name = "other", .bucket = "b"}).ok());
  cancelled_["cancelled"]->store(true);
  clock_.Advance(5ms);

  EXPECT_THAT(Pull(), ElementsAre("other"));
  EXPECT_THAT(answers_, ElementsAre("expires DEADLINE_EXCEEDED", "cancelled CANCELLED"));
  EXPECT_THAT(refusals_, ElementsAre(Refusal::kDeadline, Refusal::kCancelled));
}

TEST_F(BatcherTest, AFullQueueRefusesAndRecovers) {
  Start({.max_queue_requests = 2});
  ASSERT_TRUE(Submit({.name = "1"}).ok());
  ASSERT_TRUE(Submit({.name = "2", .bucket = "b"}).ok());
  EXPECT_EQ(Submit({.name = "3"}),
            absl::ResourceExhaustedError("request: queue is full (2 requests), retry later"));
  EXPECT_THAT(refusals_, ElementsAre(Refusal::kQueueFull));
  EXPECT_THAT(Pull(), ElementsAre("1"));
  EXPECT_TRUE(Submit({.name = "3"}).ok());
}

// Regression: a request for one device was refused because the queue of another was full.
TEST_F(BatcherTest, ARequestForAnyOfSeveralQueuesIsRefusedOnlyIfAllAreFull) {
  Start({.max_queue_requests = 1});
  Batcher other({.max_queue_requests = 1,
                 .refused = [this](Refusal refusal) { refusals_.push_back(refusal); }},
                &clock_);
  Batcher* const both[] = {batcher_.get(), &other};
  const auto admit = [&] {
    return Batcher::AdmitToAny(both, "a", /*priority=*/0, TimePoint::max());
  };
  EXPECT_TRUE(Submit({"fills the first"}).ok());
  EXPECT_TRUE(admit().ok());
  EXPECT_THAT(refusals_, IsEmpty());

  std::unique_ptr<Task> task = Make({"fills the other"});
  ASSERT_TRUE(other.Submit(task).ok());
  EXPECT_EQ(admit(),
            absl::ResourceExhaustedError("request: queue is full (1 requests), retry later"));
  EXPECT_THAT(refusals_, ElementsAre(Refusal::kQueueFull));

  EXPECT_THAT(Pull(), ElementsAre("fills the first"));
  EXPECT_TRUE(admit().ok());
  other.Ended(other.TryPull().run);
}

TEST_F(BatcherTest, DepthCountsWaitingRequestsAndTheirAge) {
  Start({});
  ASSERT_TRUE(Submit({.name = "1", .bytes = 10}).ok());
  clock_.Advance(1500ms);
  ASSERT_TRUE(Submit({.name = "2", .bucket = "b", .bytes = 20}).ok());
  const Batcher::Depth depth = batcher_->depth();
  EXPECT_EQ(depth.requests, 2);
  EXPECT_EQ(batcher_->waiting(), 2);
  EXPECT_EQ(depth.bytes, 30);
  EXPECT_DOUBLE_EQ(depth.oldest_seconds, 1.5);
}

TEST_F(BatcherTest, AFailedDeviceRefusesWhatWaitsAndWhatComes) {
  Start({});
  ASSERT_TRUE(Submit({.name = "runs"}).ok());
  EXPECT_THAT(Begin(), ElementsAre("runs"));
  ASSERT_TRUE(Submit({.name = "1"}).ok());
  ASSERT_TRUE(Submit({.name = "2", .bucket = "b"}).ok());
  batcher_->Fail(absl::UnavailableError("device: cuda:0 failed: for a test"));
  EXPECT_THAT(answers_, testing::UnorderedElementsAre("1 UNAVAILABLE", "2 UNAVAILABLE"));
  EXPECT_EQ(batcher_->depth().bytes, 0);
  batcher_->Fail(absl::UnavailableError("device: cuda:0 failed: again"));
  EXPECT_EQ(Submit({.name = "3"}), absl::UnavailableError("device: cuda:0 failed: for a test"));
  EXPECT_THAT(refusals_, ElementsAre(Refusal::kDevice, Refusal::kDevice, Refusal::kDevice));
  batcher_->Close();
  EXPECT_THAT(batcher_->Pull().tasks, IsEmpty());
}

TEST_F(BatcherTest, AfterCloseTheQueueDrainsAndNothingEnters) {
  Start({});
  ASSERT_TRUE(Submit({.name = "1"}).ok());
  batcher_->Close();
  EXPECT_EQ(Submit({.name = "2"}),
            absl::UnavailableError("request: the server is draining, send it to another one"));
  EXPECT_THAT(refusals_, ElementsAre(Refusal::kDraining));
  const Batcher::Batch last = batcher_->Pull();
  EXPECT_EQ(last.tasks.size(), 1u);
  batcher_->Ended(last.run);
  EXPECT_THAT(batcher_->Pull().tasks, IsEmpty());
}

}  // namespace
}  // namespace attnd
