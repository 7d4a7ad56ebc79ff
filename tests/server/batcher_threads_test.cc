// Submitters, lanes and a sweeper at once: every request is answered exactly once and every byte is
// returned. Also for the thread sanitizer.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "server/batcher.h"

namespace attnd {
namespace {

// Counts how often it is read. A lane reads it in Pull, with the batcher's lock, before it waits.
class CountingClock final : public Clock {
 public:
  TimePoint Now() const override {
    ++reads;
    return std::chrono::steady_clock::now();
  }
  mutable std::atomic<int> reads = 0;
};

constexpr int kSubmitters = 4, kLanes = 3, kEach = 2000;

struct Counts {
  std::atomic<int> ok = 0, expired = 0, cancelled = 0, refused = 0;
  std::vector<std::atomic<int>> answers = std::vector<std::atomic<int>>(kSubmitters * kEach);
};

std::unique_ptr<Task> MakeTask(int id, Counts* counts) {
  auto plan = std::make_shared<Plan>();
  plan->bucket = std::string(1, static_cast<char>('a' + id % 7));
  auto task = std::make_unique<Task>();
  task->plan = plan;
  task->priority = id % 3;
  task->admitted = std::chrono::steady_clock::now();
  if (id % 11 == 0) task->deadline = task->admitted;
  task->cancelled = std::make_shared<std::atomic<bool>>(false);
  task->charged_bytes = id % 100;
  task->done = [id, counts](absl::Status status, std::vector<Result>, const Phases&) {
    counts->answers[id] += 1;
    if (status.ok()) counts->ok += 1;
    if (absl::IsDeadlineExceeded(status)) counts->expired += 1;
    if (absl::IsCancelled(status)) counts->cancelled += 1;
  };
  return task;
}

void SubmitAll(int first, Batcher* batcher, Counts* counts) {
  for (int id = first; id < first + kEach; ++id) {
    std::unique_ptr<Task> task = MakeTask(id, counts);
    const std::shared_ptr<std::atomic<bool>> cancelled = task->cancelled;
    const absl::Status status = batcher->Submit(task);
    if (status.ok()) {
      if (id % 13 == 0) cancelled->store(true);
    } else {
      // Requests with a deadline at the moment of their submission may expire before it.
      ASSERT_TRUE(absl::IsResourceExhausted(status) || absl::IsDeadlineExceeded(status)) << status;
      (absl::IsResourceExhausted(status) ? counts->refused : counts->expired) += 1;
      counts->answers[id] += 1;
    }
  }
}

void RunLane(Batcher* batcher) {
  for (;;) {
    Batcher::Batch batch = batcher->Pull();
    if (batch.tasks.empty()) return;
    const std::string bucket = batch.tasks[0]->plan->bucket;
    for (std::unique_ptr<Task>& task : batch.tasks) {
      ASSERT_EQ(task->plan->bucket, bucket);
      Finish(std::move(task), absl::OkStatus(), {}, {});
    }
    batcher->Ended(batch.run);
  }
}

TEST(BatcherThreads, EverythingIsAnsweredExactlyOnce) {
  const SteadyClock clock;
  Counts counts;
  std::atomic<int> counted_refusals = 0;
  Batcher batcher({.max_queue_requests = 200,
                   .max_batch_requests = 8,
                   .refused = [&](Refusal) { counted_refusals += 1; }},
                  &clock);
  std::atomic<bool> stop_sweeping = false;
  std::vector<std::thread> submitters, lanes;
  std::thread sweeper([&] {
    while (!stop_sweeping) {
      batcher.Sweep();
      (void)batcher.depth();
      std::this_thread::yield();
    }
  });
  for (int i = 0; i < kLanes; ++i) lanes.emplace_back([&] { RunLane(&batcher); });
  for (int i = 0; i < kSubmitters; ++i) {
    submitters.emplace_back([&, i] { SubmitAll(i * kEach, &batcher, &counts); });
  }
  for (std::thread& thread : submitters) thread.join();
  batcher.Close();
  for (std::thread& thread : lanes) thread.join();
  stop_sweeping = true;
  sweeper.join();

  for (const std::atomic<int>& answers : counts.answers) ASSERT_EQ(answers, 1);
  EXPECT_EQ(counts.ok + counts.expired + counts.cancelled + counts.refused, kSubmitters * kEach);
  EXPECT_EQ(counted_refusals, counts.expired + counts.cancelled + counts.refused);
  EXPECT_GT(counts.ok, 0);
  EXPECT_GT(counts.expired, 0);
  const Batcher::Depth depth = batcher.depth();
  EXPECT_EQ(depth.requests, 0);
  EXPECT_EQ(depth.bytes, 0);
}

TEST(BatcherThreads, ALaneThatWaitsWakesUpForWork) {
  const SteadyClock clock;
  Counts counts;
  Batcher batcher({}, &clock);
  std::thread lane([&] { RunLane(&batcher); });
  std::unique_ptr<Task> task = MakeTask(1, &counts);
  ASSERT_TRUE(batcher.Submit(task).ok());
  while (counts.ok == 0) std::this_thread::yield();
  batcher.Close();
  lane.join();
  EXPECT_EQ(counts.answers[1], 1);
}

// Regression: two lanes took turns, so that both had cold caches and every batch cost a wake-up.
TEST(BatcherThreads, ALaneThatIsAboutToPullIsNotPassed) {
  const CountingClock clock;
  Counts counts;
  Batcher batcher({}, &clock);
  const auto submit = [&](int id) {
    std::unique_ptr<Task> task = MakeTask(id, &counts);
    EXPECT_TRUE(batcher.Submit(task).ok());
  };
  submit(1);
  Batcher::Batch batch = batcher.TryPull();
  ASSERT_EQ(batch.tasks.size(), 1);
  Finish(std::move(batch.tasks[0]), absl::OkStatus(), {}, {});
  const int reads = clock.reads;
  std::thread other([&] { RunLane(&batcher); });
  while (clock.reads == reads) std::this_thread::yield();
  // The lock that depth takes is free once the other lane waits.
  (void)batcher.depth();
  batcher.Ended(batch.run);
  submit(2);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(counts.answers[2], 0) << "the other lane was woken";
  // Watch wakes another lane when the expected one does not pull.
  std::thread watch([&] { batcher.Watch(); });
  while (counts.answers[2] == 0) std::this_thread::yield();
  batcher.Close();
  other.join();
  watch.join();
}

}  // namespace
}  // namespace attnd
