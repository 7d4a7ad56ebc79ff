// A lane on the real engine: correct answers, one copy of each payload, independent failures.
#include "tests/server/lane_fixture.h"

namespace attnd {
namespace {

TEST_F(LaneTest, EachCallerGetsItsOwnResultBitForBitAsAlone) {
  Run(MakeReal("alone 5", "softmax", 2, 5, 8, 0.5F));
  Run(MakeReal("alone 67", "softmax", 2, 67, 8, 0.7F));
  Run(MakeReal("together 67", "softmax", 2, 67, 8, 0.7F),
      MakeReal("together 5", "softmax", 2, 5, 8, 0.5F));

  EXPECT_EQ(answers_["together 5"].phases.batch_requests, 2);
  EXPECT_EQ(answers_["together 5"].phases.batch_tokens, 72);
  for (const char* n : {"5", "67"}) {
    const Answer& alone = answers_[absl::StrCat("alone ", n)];
    const Answer& together = answers_[absl::StrCat("together ", n)];
    ASSERT_TRUE(alone.status.ok()) << alone.status;
    ASSERT_TRUE(together.status.ok()) << together.status;
    ASSERT_EQ(alone.results.size(), 2u);  // out, lse
    ASSERT_EQ(together.results.size(), 2u);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(Bytes(alone.results[i]), Bytes(together.results[i]));
    }
  }
  EXPECT_NE(Bytes(answers_["alone 5"].results[0]).substr(0, 64),
            Bytes(answers_["alone 67"].results[0]).substr(0, 64));
}

// One allocation of the size of the payload for each input and output tensor; the inputs are freed
// before the answer.
TEST_F(LaneTest, OneAllocationForEachTensor) {
  constexpr int64_t kTensor = 8 * 4096 * 64 * sizeof(float);
  std::unique_ptr<Task> task =
      MakeReal("big", "local", 8, 4096, 64, 0.1F, {{"window_left", int64_t{16}}});
  const std::shared_ptr<const Plan> plan = task->plan;
  const PoolStats before = engine_->device().memory().stats();
  Run(std::move(task));
  ASSERT_TRUE(answers_["big"].status.ok()) << answers_["big"].status;
  const PoolStats after = engine_->device().memory().stats();

  int64_t outputs = 0;
  for (const Result& result : answers_["big"].results) outputs += result.buffer->bytes();
  EXPECT_EQ(after.used_bytes - before.used_bytes, outputs);
  EXPECT_LT(outputs, kTensor + kTensor / 4);  // out, lse and the rounding

  // Three inputs and one output of that size at the peak; scratch memory is far less than one more.
  EXPECT_GE(after.peak_bytes, 4 * kTensor);
  EXPECT_LT(after.peak_bytes, 5 * kTensor);
  EXPECT_LE(answers_["big"].phases.peak_workspace_bytes, plan->workspace_bytes);

  // What Execute alone allocates, the lane allocates too, plus one buffer for each input.
  std::vector<std::shared_ptr<Buffer>> inputs;
  Problem problem{.plan = plan};
  for (const auto& [name, view] : plan->tensors) {
    inputs.push_back(engine_->device().memory().Allocate(view.bytes()));
    std::memset(inputs.back()->data(), 0, view.bytes());
    problem.tensors[name] = view;
    problem.tensors[name].data = inputs.back()->data();
  }
  Stream stream(engine_->device(), &engine_->device().memory());
  const int64_t start = engine_->device().memory().stats().allocations;
  ASSERT_TRUE(engine_->Execute(stream, {&problem, 1}).ok());
  const int64_t of_execute = engine_->device().memory().stats().allocations - start;
  EXPECT_EQ(after.allocations - before.allocations, of_execute + 3);
}

TEST_F(LaneTest, ReceivedBytesAreReleasedBeforeTheComputation) {
  std::unique_ptr<Task> task = MakePuppet("a", 1);
  const std::weak_ptr<void> received = task->payload_owner;
  bool held_while_running = true;
  puppet_.on_run = [&] { held_while_running = !received.expired(); };
  Run(std::move(task));
  EXPECT_FALSE(held_while_running);
  EXPECT_EQ(answers_["a"].input_bytes_left, 0);
  EXPECT_TRUE(answers_["a"].status.ok());
}

TEST_F(LaneTest, PhasesDoNotOverlap) {
  std::unique_ptr<Task> early = MakePuppet("early", 1, 3);
  clock_.Advance(5ms);
  std::unique_ptr<Task> late = MakePuppet("late", 1, 4);
  clock_.Advance(2ms);
  puppet_.on_run = [this] { clock_.Advance(40ms); };
  const TimePoint start = clock_.Now();
  Run(std::move(early), std::move(late));

  const Phases& phases = answers_["early"].phases;
  EXPECT_DOUBLE_EQ(phases.queue_seconds, 0.007);
  EXPECT_DOUBLE_EQ(phases.gather_seconds, 0);
  EXPECT_DOUBLE_EQ(phases.compute_seconds, 0.040);
  EXPECT_EQ(phases.batch_requests, 2);
  EXPECT_EQ(phases.batch_tokens, 7);
  EXPECT_EQ(phases.peak_workspace_bytes, 2 * RoundedBytes(16));
  EXPECT_EQ(phases.computed, start + 40ms);
  EXPECT_DOUBLE_EQ(answers_["late"].phases.queue_seconds, 0.002);
}

// Regression: waiting in the queue did not count when a run waited for its share of the threads.
TEST_F(LaneTest, WaitingForThePatienceInTheQueueIsWaitingOfTheRun) {
  const auto make = [&](const std::string& name, std::chrono::seconds ago, double seconds) {
    std::unique_ptr<Task> task = MakePuppet(name, 1);
    task->plan = puppet_.MakePlan(4, seconds);
    task->admitted = clock_.Now() - ago;
    return task;
  };
  ASSERT_EQ(Batcher::kPatience, 2s);
  Run(make("just now", 0s, 8));
  Run(make("shortly before", 1s, 8));
  Run(make("before", 2s, 8));
  Run(make("long before", 5s, 8));
  // The oldest request of a batch counts.
  Run(make("with others", 2s, 0.01), make("new", 0s, 0.01));
  EXPECT_THAT(puppet_.batches, ElementsAre(1, 1, 1, 1, 2));
  EXPECT_THAT(puppet_.waited_shares, ElementsAre(0, 0, 0.25, 0.625, 1));
}

TEST_F(LaneTest, TheExpiredAndTheCancelledAreDroppedJustBefore) {
  std::unique_ptr<Task> expires = MakePuppet("expires", 1);
  std::unique_ptr<Task> cancelled = MakePuppet("cancelled", 1);
  std::unique_ptr<Task> stays = MakePuppet("stays", 1);
  expires->deadline = clock_.Now() + 1ms;
  const std::shared_ptr<std::atomic<bool>> cancel = cancelled->cancelled;
  ASSERT_TRUE(batcher_->Submit(expires).ok());
  ASSERT_TRUE(batcher_->Submit(cancelled).ok());
  ASSERT_TRUE(batcher_->Submit(stays).ok());
  Batcher::Batch batch = batcher_->TryPull();
  ASSERT_EQ(batch.tasks.size(), 3u);

  clock_.Advance(1ms);
  cancel->store(true);
  const int64_t allocations = engine_->device().memory().stats().allocations;
  lane_->RunBatch(std::move(batch));
  // Input and output of the remaining request: nothing is copied for the others.
  EXPECT_EQ(engine_->device().memory().stats().allocations - allocations, 2);
  EXPECT_TRUE(absl::IsDeadlineExceeded(answers_["expires"].status));
  EXPECT_TRUE(absl::IsCancelled(answers_["cancelled"].status));
  EXPECT_TRUE(answers_["stays"].status.ok());
  EXPECT_THAT(puppet_.batches, ElementsAre(1));
  EXPECT_EQ(batcher_->depth().bytes, 0);
  const std::string text = *metrics_.Text();
  EXPECT_THAT(text, HasSubstr("attnd_refused_total{reason=\"deadline\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("attnd_refused_total{reason=\"cancelled\"} 1\n"));
}

TEST_F(LaneTest, ARequestThatFailsDoesNotHarmTheOthersOfItsBatch) {
  Run(MakePuppet("a", 1), MakePuppet("bad", PuppetMethod::kBad), MakePuppet("c", 3));

  EXPECT_THAT(puppet_.batches, ElementsAre(3, 1, 1, 1));
  EXPECT_EQ(answers_["bad"].status, absl::InvalidArgumentError("puppet: bad value"));
  EXPECT_THAT(answers_["bad"].results, IsEmpty());
  for (const auto& [name, first] : std::map<std::string, float>{{"a", 1.0F}, {"c", 3.0F}}) {
    ASSERT_TRUE(answers_[name].status.ok()) << answers_[name].status;
    ASSERT_EQ(answers_[name].results.size(), 1u);
    EXPECT_EQ(*answers_[name].results[0].view.As<float>(), first);
    EXPECT_EQ(answers_[name].count, 1);
    EXPECT_EQ(answers_[name].phases.batch_requests, 1);
  }
  EXPECT_EQ(batcher_->depth().bytes, 0);
}

TEST_F(LaneTest, AnExceptionOfAMethodIsAnError) {
  puppet_.on_run = [] { throw std::bad_alloc(); };
  Run(MakePuppet("a", 1));
  EXPECT_TRUE(absl::IsResourceExhausted(answers_["a"].status)) << answers_["a"].status;
  EXPECT_EQ(lane_->input_bytes(), 0);
}

TEST_F(LaneTest, APayloadOfTheWrongSizeIsAnErrorOfItsRequestOnly) {
  std::unique_ptr<Task> longer = MakePuppet("longer", 1, 4);
  longer->plan = puppet_.MakePlan(3);
  std::unique_ptr<Task> shorter = MakePuppet("shorter", 1, 4);
  shorter->plan = puppet_.MakePlan(5);
  Run(std::move(longer), MakePuppet("good", 2), std::move(shorter));
  EXPECT_EQ(answers_["longer"].status,
            absl::InternalError("request: q must have 12 bytes, got 16"));
  EXPECT_EQ(answers_["shorter"].status,
            absl::InternalError("request: q must have 20 bytes, got 16"));
  EXPECT_TRUE(answers_["good"].status.ok());
  EXPECT_EQ(batcher_->depth().bytes, 0);
}

TEST_F(LaneTest, WithoutMemoryTheRequestIsRefusedAndTheLaneGoesOn) {
  constexpr int64_t kFloats = int64_t{1} << 48;
  std::unique_ptr<Task> huge = MakePuppet("huge", 1);
  huge->plan = puppet_.MakePlan(kFloats);
  // An address that is never read, since there is no memory for the copy.
  const std::byte* nowhere = huge->payloads["q"][0].data();
  huge->payloads["q"] = {{nowhere, size_t{kFloats} * 4}};
  Run(std::move(huge), MakePuppet("good", 2));
  EXPECT_EQ(answers_["huge"].status,
            absl::ResourceExhaustedError(
                absl::StrCat("request: no memory for q (", kFloats * 4, " bytes), retry later")));
  EXPECT_TRUE(answers_["good"].status.ok());
}

TEST_F(LaneTest, ABatchIsInTheMetrics) {
  puppet_.on_run = [this] { clock_.Advance(10ms); };
  Run(MakePuppet("a", 1, 2), MakePuppet("b", 1, 3));
  const std::string text = *metrics_.Text();
  for (const char* line : {
           "attnd_dispatch_total{reason=\"idle\"} 1\n",
           "attnd_batch_requests_sum{method=\"softmax\"} 2\n",
           "attnd_batch_tokens_sum{method=\"softmax\"} 5\n",
           "attnd_compute_seconds_count{direction=\"forward\",method=\"softmax\"} 2\n",
           "attnd_compute_seconds_sum{direction=\"forward\",method=\"softmax\"} 0.02\n",
           "attnd_batch_compute_seconds_total{device=\"cpu\",direction=\"forward\","
           "method=\"softmax\"} 0.01\n",
           "attnd_tokens_total{device=\"cpu\",direction=\"forward\",method=\"softmax\"} 5\n",
           "attnd_flops_total{device=\"cpu\",direction=\"forward\",method=\"softmax\"} 5000\n",
           "attnd_lane_busy_seconds_total{device=\"cpu\",lane=\"0\"} 0.01\n",
           "attnd_lane_efficiency_ratio{device=\"cpu\",lane=\"0\"} 0.5\n",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST_F(LaneTest, TheThreadRunsSubmittedRequestsUntilTheQueueIsClosed) {
  ASSERT_TRUE(lane_->Start().ok());
  for (int i = 0; i < 50; ++i) {
    std::unique_ptr<Task> task =
        MakePuppet(absl::StrCat(i), i == 7 ? PuppetMethod::kBad : static_cast<float>(i));
    ASSERT_TRUE(batcher_->Submit(task).ok());
  }
  batcher_->Close();
  lane_->Join();
  ASSERT_EQ(answers_.size(), 50u);
  for (const auto& [name, answer] : answers_) {
    EXPECT_EQ(answer.count, 1);
    EXPECT_EQ(answer.status.ok(), name != "7") << name;
    if (answer.status.ok()) {
      ASSERT_EQ(answer.results.size(), 1u) << name;
      EXPECT_EQ(absl::StrCat(*answer.results[0].view.As<float>()), name);
    }
  }
  EXPECT_EQ(batcher_->depth().bytes, 0);
}

}  // namespace
}  // namespace attnd
