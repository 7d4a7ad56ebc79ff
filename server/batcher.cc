#include "server/batcher.h"

#include <algorithm>
#include <cassert>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "kernels/core/status.h"

namespace attnd {
namespace {

// What decides the order, beside each other in memory: a Pull reads every record that waits.
struct Entry {
  int64_t priority = 0;
  TimePoint admitted, deadline;
  uint64_t sequence = 0;  // order of Submit
  const std::atomic<bool>* cancelled = nullptr;
  std::unique_ptr<Task> task;
};

using Bucket = std::vector<Entry>;
using Tasks = std::vector<std::unique_ptr<Task>>;

// Smaller runs earlier: aged priority, then deadline, then age.
using Rank = std::tuple<int64_t, TimePoint, uint64_t>;

Rank RankOf(const Entry& entry, TimePoint now) {
  const auto waited = std::chrono::duration_cast<std::chrono::seconds>(now - entry.admitted);
  return {-(entry.priority + waited.count()), entry.deadline, entry.sequence};
}

bool IsDead(const Entry& entry, TimePoint now) {
  return entry.deadline <= now || entry.cancelled->load(std::memory_order_relaxed);
}

}  // namespace

struct Batcher::Impl {
  Impl(const Options& o, const Clock* c) : options(o), clock(c) {}

  const Options options;
  const Clock* const clock;

  Mutex mu;
  CondVar work;
  std::unordered_map<std::string, Bucket> buckets ATTND_GUARDED_BY(mu);  // none is empty
  int64_t waiting ATTND_GUARDED_BY(mu) = 0;
  int64_t waiting_bytes ATTND_GUARDED_BY(mu) = 0;
  uint64_t next_sequence ATTND_GUARDED_BY(mu) = 0;
  bool closed ATTND_GUARDED_BY(mu) = false;

  absl::Status Admit(Refusal* refusal) ATTND_REQUIRES(mu);
  std::unique_ptr<Task> Remove(Entry& entry) ATTND_REQUIRES(mu);
  void TakeDead(TimePoint now, Tasks* dead) ATTND_REQUIRES(mu);
  Batch TakeBest(TimePoint now) ATTND_REQUIRES(mu);
  int64_t Fill(Bucket& bucket, Batch* batch) ATTND_REQUIRES(mu);
  void Answer(Tasks dead, TimePoint now);
};

absl::Status Batcher::Impl::Admit(Refusal* refusal) {
  if (closed) {
    *refusal = Refusal::kDraining;
    return absl::UnavailableError("request: the server is draining, send it to another one");
  }
  if (waiting >= options.max_queue_requests) {
    *refusal = Refusal::kQueueFull;
    return absl::ResourceExhaustedError(absl::StrCat(
        "request: queue is full (", options.max_queue_requests, " requests), retry later"));
  }
  return absl::OkStatus();
}

// The caller erases the entry.
std::unique_ptr<Task> Batcher::Impl::Remove(Entry& entry) {
  waiting -= 1;
  waiting_bytes -= entry.task->charged_bytes;
  return std::move(entry.task);
}

void Batcher::Impl::TakeDead(TimePoint now, Tasks* dead) {
  for (auto it = buckets.begin(); it != buckets.end();) {
    Bucket& bucket = it->second;
    std::erase_if(bucket, [&](Entry& entry) ATTND_REQUIRES(mu) {
      if (!IsDead(entry, now)) return false;
      dead->push_back(Remove(entry));
      return true;
    });
    it = bucket.empty() ? buckets.erase(it) : std::next(it);
  }
}

// Takes from the front of `bucket`, which is sorted, as much as the caps allow; returns how many.
int64_t Batcher::Impl::Fill(Bucket& bucket, Batch* batch) {
  int64_t taken = 0, bytes = 0;
  double seconds = 0;
  for (Entry& entry : bucket) {
    const Task& task = *entry.task;
    if (taken > 0 && (task.charged_bytes > options.max_batch_bytes - bytes ||
                      seconds + task.plan->seconds > options.max_batch_seconds)) {
      break;
    }
    bytes += task.charged_bytes;
    seconds += task.plan->seconds;
    batch->tasks.push_back(Remove(entry));
    if (++taken >= options.max_batch_requests) break;
  }
  return taken;
}

Batcher::Batch Batcher::Impl::TakeBest(TimePoint now) {
  auto best = buckets.end();
  Rank best_rank;
  for (auto it = buckets.begin(); it != buckets.end(); ++it) {
    for (const Entry& entry : it->second) {
      const Rank rank = RankOf(entry, now);
      if (best == buckets.end() || rank < best_rank) {
        best = it;
        best_rank = rank;
      }
    }
  }
  Batch batch;
  if (best == buckets.end()) return batch;
  Bucket& bucket = best->second;
  std::sort(bucket.begin(), bucket.end(),
            [now](const Entry& a, const Entry& b) { return RankOf(a, now) < RankOf(b, now); });
  const int64_t taken = Fill(bucket, &batch);
  const bool has_rest = taken < static_cast<int64_t>(bucket.size());
  batch.reason = has_rest || taken >= options.max_batch_requests ? Reason::kFull : Reason::kIdle;
  bucket.erase(bucket.begin(), bucket.begin() + taken);
  if (bucket.empty()) buckets.erase(best);
  return batch;
}

// REQUIRES: no lock is held.
void Batcher::Impl::Answer(Tasks dead, TimePoint now) {
  for (std::unique_ptr<Task>& task : dead) {
    absl::Status status = CheckAlive(*task, now);
    if (options.refused) options.refused(RefusalOf(status));
    Phases phases;
    phases.queue_seconds = Seconds(now - task->admitted);
    Finish(std::move(task), std::move(status), {}, phases);
  }
}

Batcher::Batcher(const Options& options, const Clock* clock)
    : impl_(std::make_unique<Impl>(options, clock)) {}

Batcher::~Batcher() { assert(depth().requests == 0); }

absl::Status Batcher::Submit(std::unique_ptr<Task>& task) {
  assert(task != nullptr && task->cancelled != nullptr && task->charged_bytes >= 0);
  absl::Status status;
  Refusal refusal = Refusal::kQueueFull;
  {
    MutexLock lock(&impl_->mu);
    status = impl_->Admit(&refusal);
    if (status.ok()) {
      Bucket& bucket = impl_->buckets[task->plan->bucket];
      bucket.push_back({.priority = task->priority,
                        .admitted = task->admitted,
                        .deadline = task->deadline,
                        .sequence = impl_->next_sequence++,
                        .cancelled = task->cancelled.get()});
      impl_->waiting += 1;
      impl_->waiting_bytes += task->charged_bytes;
      bucket.back().task = std::move(task);
    }
  }
  if (status.ok()) {
    impl_->work.NotifyOne();
  } else if (impl_->options.refused) {
    impl_->options.refused(refusal);
  }
  return status;
}

Batcher::Batch Batcher::Pull() {
  for (;;) {
    Batch batch = TryPull();
    if (!batch.tasks.empty()) return batch;
    MutexLock lock(&impl_->mu);
    while (impl_->waiting == 0) {
      if (impl_->closed) return {};
      impl_->work.Wait(&impl_->mu);
    }
  }
}

Batcher::Batch Batcher::TryPull() {
  Tasks dead;
  Batch batch;
  const TimePoint now = impl_->clock->Now();
  {
    MutexLock lock(&impl_->mu);
    impl_->TakeDead(now, &dead);
    batch = impl_->TakeBest(now);
  }
  impl_->Answer(std::move(dead), now);
  return batch;
}

void Batcher::Sweep() {
  Tasks dead;
  const TimePoint now = impl_->clock->Now();
  {
    MutexLock lock(&impl_->mu);
    impl_->TakeDead(now, &dead);
  }
  impl_->Answer(std::move(dead), now);
}

void Batcher::Close() {
  {
    MutexLock lock(&impl_->mu);
    impl_->closed = true;
  }
  impl_->work.NotifyAll();
}

Batcher::Depth Batcher::depth() const {
  const TimePoint now = impl_->clock->Now();
  MutexLock lock(&impl_->mu);
  Depth depth{.requests = impl_->waiting, .bytes = impl_->waiting_bytes};
  for (const auto& [name, bucket] : impl_->buckets) {
    for (const Entry& entry : bucket) {
      depth.oldest_seconds = std::max(depth.oldest_seconds, Seconds(now - entry.admitted));
    }
  }
  return depth;
}

int64_t Batcher::waiting() const {
  MutexLock lock(&impl_->mu);
  return impl_->waiting;
}

}  // namespace attnd
