// Which batches run beside each other, and how clients share the queue.
#include "tests/server/batcher_fixture.h"

namespace attnd {
namespace {

TEST_F(BatcherTest, WhileABatchRunsThatEndsSoonCompanyGathers) {
  Start({});
  ASSERT_TRUE(Submit({.name = "first", .seconds = 0.004}).ok());
  EXPECT_THAT(Begin(), ElementsAre("first"));
  for (const char* name : {"1", "2", "3"}) {
    ASSERT_TRUE(Submit({.name = name, .seconds = 0.001}).ok());
    EXPECT_THAT(Begin(), IsEmpty());
  }
  End("first");
  EXPECT_THAT(Begin(), ElementsAre("1", "2", "3"));
}

// Regression: a request of a minute delayed every small one behind it by a minute.
TEST_F(BatcherTest, ASmallOneStartsBesideALongOneAndTheNextGatherBehindIt) {
  Start({});
  ASSERT_TRUE(Submit({.name = "long", .seconds = 60}).ok());
  EXPECT_THAT(Begin(), ElementsAre("long"));
  ASSERT_TRUE(Submit({.name = "small", .bucket = "b", .seconds = 0.001}).ok());
  EXPECT_THAT(Begin(), ElementsAre("small"));
  EXPECT_DOUBLE_EQ(batch_.seconds, 0.001);
  ASSERT_TRUE(Submit({.name = "next", .bucket = "b", .seconds = 0.001}).ok());
  ASSERT_TRUE(Submit({.name = "after", .bucket = "b", .seconds = 0.001}).ok());
  EXPECT_THAT(Begin(), IsEmpty());
  End("small");
  EXPECT_THAT(Begin(), ElementsAre("next", "after"));
}

TEST_F(BatcherTest, ALateRunLetsOthersStart) {
  Start({});
  ASSERT_TRUE(Submit({.name = "wrong", .seconds = 0.001}).ok());
  EXPECT_THAT(Begin(), ElementsAre("wrong"));
  ASSERT_TRUE(Submit({.name = "other", .seconds = 0.001}).ok());
  clock_.Advance(5ms);
  EXPECT_THAT(Begin(), IsEmpty());
  clock_.Advance(2ms);
  EXPECT_THAT(Begin(), ElementsAre("other"));
}

// Regression: a request predicted a little shorter than running equal ones overtook them, and all
// of them ended later.
TEST_F(BatcherTest, ARequestAboutAsLongDoesNotStartBeside) {
  Start({});
  ASSERT_TRUE(Submit({.name = "runs", .seconds = 10}).ok());
  EXPECT_THAT(Begin(), ElementsAre("runs"));
  ASSERT_TRUE(Submit({.name = "shorter", .bucket = "b", .seconds = 5.1}).ok());
  EXPECT_THAT(Begin(), IsEmpty());
  ASSERT_TRUE(Submit({.name = "short", .bucket = "c", .seconds = 5}).ok());
  EXPECT_THAT(Begin(), ElementsAre("short"));
}

TEST_F(BatcherTest, ABatchBesideOthersTakesHalfOfTheirSecondsLeft) {
  Start({.max_batch_seconds = 100});
  ASSERT_TRUE(Submit({.name = "runs", .seconds = 16}).ok());
  EXPECT_THAT(Begin(), ElementsAre("runs"));
  for (const char* name : {"1", "2", "3"}) {
    ASSERT_TRUE(Submit({.name = name, .bucket = "b", .seconds = 4}).ok());
  }
  EXPECT_THAT(Begin(), ElementsAre("1", "2"));
}

TEST_F(BatcherTest, OneThatIsNotShorterWaitsAndForAnotherClientNotForLong) {
  Start({});
  ASSERT_TRUE(Submit({.name = "runs", .seconds = 60}).ok());
  EXPECT_THAT(Begin(), ElementsAre("runs"));
  ASSERT_TRUE(Submit({.name = "own", .bucket = "b", .seconds = 60}).ok());
  ASSERT_TRUE(Submit({.name = "other", .bucket = "c", .seconds = 60, .client = "b"}).ok());
  clock_.Advance(Batcher::kPatience - 1ms);
  EXPECT_THAT(Begin(), IsEmpty());
  clock_.Advance(1ms);
  EXPECT_THAT(Begin(), ElementsAre("other"));
  clock_.Advance(10s);
  EXPECT_THAT(Begin(), IsEmpty());
  End("runs");
  EXPECT_THAT(Begin(), ElementsAre("own"));
}

// Regression: beside three long batches all other work above 50 ms waited until one of them ended.
TEST_F(BatcherTest, TheLongerABatchTheFewerRun) {
  Start({.max_running = 6});
  const auto submit = [&](const std::string& name, double seconds, const std::string& client) {
    ASSERT_TRUE(Submit({.name = name, .bucket = name, .seconds = seconds, .client = client}).ok());
  };
  submit("600", 600, "x");
  EXPECT_THAT(Begin(), ElementsAre("600"));
  submit("250", 250, "y");
  EXPECT_THAT(Begin(), ElementsAre("250"));
  submit("100", 100, "z");
  clock_.Advance(5s);
  EXPECT_THAT(Begin(), IsEmpty());
  submit("20", 20, "z");
  EXPECT_THAT(Begin(), ElementsAre("20"));
  submit("2", 2, "z");
  EXPECT_THAT(Begin(), IsEmpty());
  submit("1", 1, "z");
  EXPECT_THAT(Begin(), ElementsAre("1"));
  submit("0.06", 0.06, "z");
  EXPECT_THAT(Begin(), IsEmpty());
  submit("0.05", 0.05, "z");
  EXPECT_THAT(Begin(), ElementsAre("0.05"));
  submit("0.006", 0.006, "z");
  EXPECT_THAT(Begin(), IsEmpty());
  submit("0.005", 0.005, "z");
  EXPECT_THAT(Begin(), ElementsAre("0.005"));
  submit("0", 0, "z");
  EXPECT_THAT(Begin(), IsEmpty());
  End("0.005");
  EXPECT_THAT(Begin(), ElementsAre("0"));
}

TEST_F(BatcherTest, TogetherShortOnesAreNoLongBatch) {
  Start({.max_batch_seconds = 10, .max_running = 2});
  ASSERT_TRUE(Submit({.name = "100", .bucket = "long", .seconds = 100}).ok());
  EXPECT_THAT(Begin(), ElementsAre("100"));
  for (const char* name : {"1", "2", "3"}) {
    ASSERT_TRUE(Submit({.name = name, .seconds = 0.002}).ok());
  }
  EXPECT_THAT(Begin(), ElementsAre("1", "2"));
}

TEST_F(BatcherTest, OneClientLeavesAPlaceForTheLongRequestsOfOthers) {
  Start({.max_running = 6});
  ASSERT_TRUE(Submit({.name = "100", .bucket = "1", .seconds = 100}).ok());
  EXPECT_THAT(Begin(), ElementsAre("100"));
  ASSERT_TRUE(Submit({.name = "30", .bucket = "2", .seconds = 30}).ok());
  EXPECT_THAT(Begin(), IsEmpty());
  // Its shorter work still runs.
  ASSERT_TRUE(Submit({.name = "0.1", .bucket = "3", .seconds = 0.1}).ok());
  EXPECT_THAT(Begin(), ElementsAre("0.1"));
  End("0.1");
  ASSERT_TRUE(Submit({.name = "25", .bucket = "4", .seconds = 25, .client = "b"}).ok());
  EXPECT_THAT(Begin(), ElementsAre("25"));
}

// Regression: it kept the level of a flood that had ended, and delayed requests of its own level.
TEST_F(BatcherTest, ALongRequestKeepsItsOwnLevel) {
  Start({});
  ASSERT_TRUE(Submit({.name = "urgent", .priority = 100, .seconds = 10}).ok());
  EXPECT_THAT(Begin(), ElementsAre("urgent"));
  for (const auto& [name, seconds] : {std::pair{"long", 600.0}, {"short", 1.0}}) {
    ASSERT_TRUE(Submit({.name = name, .bucket = name, .seconds = seconds, .client = name}).ok());
  }
  EXPECT_THAT(Begin(), IsEmpty());
  clock_.Advance(Batcher::kPatience);
  EXPECT_THAT(Begin(), ElementsAre("long"));
  EXPECT_EQ(batch_.level, 0);
  EXPECT_THAT(Begin(), ElementsAre("short"));
  EXPECT_EQ(batch_.level, 100);
  End("urgent");
  End("short");
  ASSERT_TRUE(Submit({.name = "next", .seconds = 0.001}).ok());
  EXPECT_THAT(Begin(), ElementsAre("next"));
}

TEST_F(BatcherTest, AHigherPriorityStartsBesideAndALowerOneWaits) {
  Start({});
  ASSERT_TRUE(Submit({.name = "runs", .seconds = 10}).ok());
  EXPECT_THAT(Begin(), ElementsAre("runs"));
  ASSERT_TRUE(Submit({.name = "low", .bucket = "b", .priority = -1, .seconds = 0.001}).ok());
  EXPECT_THAT(Begin(), IsEmpty());
  ASSERT_TRUE(Submit({.name = "high", .bucket = "c", .priority = 1, .seconds = 20}).ok());
  EXPECT_THAT(Begin(), ElementsAre("high"));
  EXPECT_EQ(batch_.level, 1);
  // A request that has waited kPatience gets the level of the running ones.
  clock_.Advance(Batcher::kPatience);
  EXPECT_THAT(Begin(), ElementsAre("low"));
  EXPECT_EQ(batch_.level, 1);
}

TEST_F(BatcherTest, WithOnePlaceNothingRunsBeside) {
  Start({.max_running = 1});
  ASSERT_TRUE(Submit({.name = "long", .seconds = 60}).ok());
  EXPECT_THAT(Begin(), ElementsAre("long"));
  ASSERT_TRUE(Submit({.name = "small", .bucket = "b", .seconds = 0.001, .client = "b"}).ok());
  clock_.Advance(10s);
  EXPECT_THAT(Begin(), IsEmpty());
  End("long");
  EXPECT_THAT(Begin(), ElementsAre("small"));
}

TEST_F(BatcherTest, ClientsTakeTurnsByPredictedSeconds) {
  Start({.max_batch_requests = 1});
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(Submit({.name = absl::StrCat("a", i), .seconds = 0.2}).ok());
  }
  ASSERT_TRUE(Submit({.name = "b0", .bucket = "b", .seconds = 0.1, .client = "b"}).ok());
  ASSERT_TRUE(Submit({.name = "b1", .bucket = "b", .seconds = 0.1, .client = "b"}).ok());
  ASSERT_TRUE(Submit({.name = "b2", .bucket = "b", .seconds = 0.1, .client = "b"}).ok());
  std::vector<std::string> order;
  for (int i = 0; i < 7; ++i) order.push_back(Pull().at(0));
  EXPECT_THAT(order, ElementsAre("a0", "b0", "b1", "a1", "b2", "a2", "a3"));
}

TEST_F(BatcherTest, ClientsTakeTurnsInsideABatch) {
  Start({.max_batch_requests = 3, .max_batch_seconds = 1});
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(Submit({.name = absl::StrCat("a", i), .seconds = 0.01}).ok());
  }
  ASSERT_TRUE(Submit({.name = "b0", .seconds = 0.01, .client = "b"}).ok());
  EXPECT_THAT(Pull(), ElementsAre("a0", "b0", "a1"));
  EXPECT_THAT(Pull(), ElementsAre("a2", "a3"));
}

// A client that was idle for a while must not get the whole machine afterwards.
TEST_F(BatcherTest, AnIdleClientSavesUpNoTurns) {
  Start({.max_batch_requests = 1});
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(Submit({.name = absl::StrCat("a", i), .seconds = 1}).ok());
    Pull();
  }
  std::vector<std::string> order;
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(Submit({.name = absl::StrCat("A", i), .seconds = 1}).ok());
    ASSERT_TRUE(
        Submit({.name = absl::StrCat("B", i), .bucket = "b", .seconds = 1, .client = "b"}).ok());
  }
  for (int i = 0; i < 8; ++i) order.push_back(Pull().at(0));
  EXPECT_THAT(std::vector(order.begin(), order.begin() + 4),
              testing::UnorderedElementsAre("A0", "B0", "A1", "B1"));
}

// Regression: a flood at priority 100 delayed others by more than 100 s.
TEST_F(BatcherTest, AFloodOfTheHighestPriorityDelaysOthersForLessThanFiveSeconds) {
  Start({});
  int sent = 0;
  const auto flood = [&] {
    while (batcher_->waiting() < 1000) {
      ASSERT_TRUE(Submit({.name = absl::StrCat("flood", sent++),
                          .bucket = absl::StrCat("flood", sent % 3),
                          .priority = 100,
                          .seconds = 0.1})
                      .ok());
    }
  };
  std::map<std::string, TimePoint> asked;
  double longest = 0;
  for (int i = 0; i < 600; ++i) {
    flood();
    if (i % 10 == 0) {
      const std::string name = absl::StrCat("other", i);
      asked[name] = clock_.Now();
      ASSERT_TRUE(
          Submit({.name = name, .bucket = "b", .priority = -100, .seconds = 0.05, .client = "b"})
              .ok());
    }
    const std::vector<std::string> batch = Begin();
    ASSERT_FALSE(batch.empty());
    for (const std::string& name : batch) {
      if (!asked.count(name)) continue;
      longest = std::max(longest, Seconds(clock_.Now() - asked[name]));
      asked.erase(name);
    }
    clock_.Advance(std::chrono::milliseconds(static_cast<int>(batch_.seconds * 1000)));
    End(batch[0]);
  }
  EXPECT_LT(longest, 5);
  EXPECT_LT(asked.size(), 5u);
}

TEST_F(BatcherTest, AFullQueueHasRoomForAClientWithFewerPlaces) {
  Start({.max_queue_requests = 4});
  for (const char* name : {"a1", "a2", "a3", "a4"}) {
    ASSERT_TRUE(Submit({.name = name, .bytes = 10}).ok());
  }
  EXPECT_TRUE(batcher_->Admit("b", 0, TimePoint::max()).ok());
  ASSERT_TRUE(Submit({.name = "b1", .bytes = 1, .client = "b"}).ok());
  ASSERT_TRUE(Submit({.name = "b2", .bytes = 1, .client = "b"}).ok());
  EXPECT_THAT(answers_, ElementsAre("a4 RESOURCE_EXHAUSTED", "a3 RESOURCE_EXHAUSTED"));
  EXPECT_THAT(refusals_, ElementsAre(Refusal::kQueueFull, Refusal::kQueueFull));
  EXPECT_EQ(batcher_->depth().requests, 4);
  EXPECT_EQ(batcher_->depth().bytes, 22);

  EXPECT_EQ(Submit({.name = "b3", .client = "b"}),
            absl::ResourceExhaustedError("request: queue is full (4 requests), retry later"));
  EXPECT_EQ(batcher_->Admit("a", 0, TimePoint::max()),
            absl::ResourceExhaustedError("request: queue is full (4 requests), retry later"));
  EXPECT_EQ(refusals_.size(), 4u);
  EXPECT_THAT(Pull(), ElementsAre("a1", "a2", "b1", "b2"));
}

TEST_F(BatcherTest, APlaceIsTakenOnlyFromAClientWithTwoMore) {
  Start({.max_queue_requests = 3});
  for (const char* name : {"a1", "a2"}) ASSERT_TRUE(Submit({.name = name}).ok());
  ASSERT_TRUE(Submit({.name = "b1", .client = "b"}).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Submit({.name = "b2", .client = "b"})));
  EXPECT_TRUE(Submit({.name = "c1", .client = "c"}).ok());
  EXPECT_THAT(answers_, ElementsAre("a2 RESOURCE_EXHAUSTED"));
  EXPECT_THAT(Pull(), ElementsAre("a1", "b1", "c1"));
}

TEST_F(BatcherTest, ABatchEndsBeforeTheDeadlineOfItsRequests) {
  Start({.max_batch_seconds = 1});
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(Submit({.name = absl::StrCat(i), .deadline = 1000ms, .seconds = 0.02}).ok());
  }
  clock_.Advance(950ms);
  EXPECT_THAT(Pull(), ElementsAre("0", "1"));
}

TEST_F(BatcherTest, ARequestCancelledBeforeItsSubmissionIsRefused) {
  Start({});
  std::unique_ptr<Task> task = Make({.name = "1"});
  task->cancelled->store(true);
  EXPECT_TRUE(absl::IsCancelled(batcher_->Submit(task)));
  EXPECT_THAT(refusals_, ElementsAre(Refusal::kCancelled));
}

}  // namespace
}  // namespace attnd
