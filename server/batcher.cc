#include "server/batcher.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <utility>

#include "kernels/core/status.h"
#include "server/no_memory.h"
#include "server/refusals.h"
#include "server/running.h"
#include "server/waiting.h"

namespace attnd {
namespace {

using std::chrono::milliseconds;

// How often Watch looks while requests wait beside running batches, and how long it goes on looking
// after it last found some before it sleeps until a notification.
constexpr milliseconds kWatchEvery{5}, kWatchFor{1000};

// A lane that waits for its call.
struct Waiter {
  CondVar call;
  bool is_called = false;
};

using AllDropped = std::vector<Waiting::Dropped>;

}  // namespace

struct Batcher::Impl {
  Impl(const Options& o, const Clock* c)
      : options(o),
        clock(c),
        waiting({.max_batch_requests = o.max_batch_requests,
                 .max_batch_bytes = o.max_batch_bytes,
                 .max_batch_seconds = o.max_batch_seconds,
                 .patience = kPatience,
                 .soon_seconds = kSoon}),
        running(o.max_running) {}

  const Options options;
  const Clock* const clock;

  Mutex mu;
  Waiting waiting ATTND_GUARDED_BY(mu);
  Running running ATTND_GUARDED_BY(mu);
  bool closed ATTND_GUARDED_BY(mu) = false;
  absl::Status failure ATTND_GUARDED_BY(mu);  // of the device
  // Lanes that wait. The last is woken first: its caches are the warmest.
  std::vector<Waiter*> idle ATTND_GUARDED_BY(mu);
  std::vector<std::unique_ptr<Waiter>> waiters ATTND_GUARDED_BY(mu);  // all that were ever made
  std::vector<Waiter*> unused ATTND_GUARDED_BY(mu);
  int called ATTND_GUARDED_BY(mu) = 0;        // woken lanes that have not looked yet
  int coming ATTND_GUARDED_BY(mu) = 0;        // lanes that pull as soon as they have answered
  TimePoint last_ended ATTND_GUARDED_BY(mu);  // when `coming` last rose
  CondVar watch;
  bool watch_sleeps ATTND_GUARDED_BY(mu) = false;

  PredictedSeconds SecondsOf(const Plan& plan) const {
    if (options.predictions != nullptr) return options.predictions->Of(plan);
    return {plan.seconds, plan.seconds, plan.seconds};
  }
  absl::Status Check(const std::string& client, Refusal* refusal) const ATTND_REQUIRES(mu);
  absl::Status WouldTake(const Waiting::Candidate& candidate, Refusal* refusal);
  absl::Status CheckHopeless(const Waiting::Candidate& candidate, TimePoint now) const
      ATTND_REQUIRES(mu);
  // Until the candidate starts.
  double SecondsAheadOf(const Waiting::Candidate& candidate, TimePoint now) const
      ATTND_REQUIRES(mu);
  Batch TakeBest(TimePoint now) ATTND_REQUIRES(mu);
  void Answer(AllDropped dropped, TimePoint now);
  Waiter* Call(TimePoint now, int trusted) noexcept ATTND_REQUIRES(mu);
  void CallAllIfOver() ATTND_REQUIRES(mu);
  void WaitForCall() ATTND_REQUIRES(mu);
  void Refused(Refusal refusal) const {
    if (options.refused) options.refused(refusal);
  }
};

absl::Status Batcher::Impl::Check(const std::string& client, Refusal* refusal) const {
  if (!failure.ok()) {
    *refusal = Refusal::kDevice;
    return failure;
  }
  if (closed) {
    *refusal = Refusal::kDraining;
    return DrainingStatus();
  }
  if (waiting.requests() >= options.max_queue_requests && !waiting.HasPlaceFor(client)) {
    *refusal = Refusal::kQueueFull;
    return QueueFullStatus(options.max_queue_requests);
  }
  return absl::OkStatus();
}

// REQUIRES: no lock is held.
absl::Status Batcher::Impl::WouldTake(const Waiting::Candidate& candidate, Refusal* refusal) {
  const TimePoint now = clock->Now();
  *refusal = Refusal::kDeadline;
  const MutexLock lock(&mu);
  ATTND_RETURN_IF_ERROR(Check(candidate.client, refusal));
  return CheckHopeless(candidate, now);
}

// The sure part of its seconds must fit behind the seconds ahead of it.
absl::Status Batcher::Impl::CheckHopeless(const Waiting::Candidate& candidate,
                                          TimePoint now) const {
  if (candidate.deadline == TimePoint::max()) return absl::OkStatus();
  const double left = Seconds(candidate.deadline - now);
  const PredictedSeconds& own = candidate.seconds;
  const double pace = running.PaceAt(now);
  // Usually this settles it, and the costly sum below is not needed.
  const double all = waiting.seconds() + running.SecondsLeft(now);
  if (left > 0 && own.sure + Predictions::kAhead * all / pace <= left) return absl::OkStatus();
  const double ahead = SecondsAheadOf(candidate, now);
  if (left > 0 && own.sure + ahead <= left) return absl::OkStatus();
  return Hopeless(own.likely, ahead, left);
}

double Batcher::Impl::SecondsAheadOf(const Waiting::Candidate& candidate, TimePoint now) const {
  const double likely = candidate.seconds.likely;
  const SecondsAhead queued = waiting.Ahead(candidate, now);
  const SecondsAhead runs = running.Before(now, candidate.client, candidate.priority, likely);
  const double patient = std::min(queued.patient + runs.patient, Seconds(kPatience));
  const double place = running.SecondsToPlace(now, candidate.client, likely);
  return std::max(patient + queued.own + runs.own, place) / running.PaceAt(now);
}

Batcher::Batch Batcher::Impl::TakeBest(TimePoint now) {
  Waiting::Batch best = waiting.TakeBest(running, now);
  Batch batch;
  if (best.tasks.empty()) return batch;
  batch.tasks = std::move(best.tasks);
  batch.reason = best.is_full ? Reason::kFull : Reason::kIdle;
  batch.level = best.level;
  batch.seconds = best.seconds.likely;
  batch.run = running.Begin(
      {.started = now, .seconds = best.seconds, .level = best.level, .client = best.client});
  return batch;
}

// REQUIRES: no lock is held.
void Batcher::Impl::Answer(AllDropped dropped, TimePoint now) {
  for (Waiting::Dropped& one : dropped) {
    Refused(one.refusal);
    Phases phases;
    phases.queue_seconds = Seconds(now - one.task->admitted);
    Finish(std::move(one.task), std::move(one.status), {}, phases);
  }
}

// Chooses a lane to wake for a request that may start, or none; the caller notifies it after it has
// unlocked. One lane at a time: what is left is known only after it has pulled. None while one of
// the `trusted` lanes is about to pull.
Waiter* Batcher::Impl::Call(TimePoint now, int trusted) noexcept {
  if (waiting.requests() == 0 || idle.empty() || called > 0) return nullptr;
  if (trusted > 0 || !waiting.AnyMayStart(running, now)) {
    // It may start later.
    if (watch_sleeps) watch.NotifyOne();
    watch_sleeps = false;
    return nullptr;
  }
  Waiter* const waiter = idle.back();
  idle.pop_back();
  waiter->is_called = true;
  ++called;
  return waiter;
}

// Once closed and drained: wakes all lanes and Watch so that they end.
void Batcher::Impl::CallAllIfOver() {
  if (!closed || waiting.requests() > 0) return;
  for (Waiter* waiter : idle) {
    waiter->is_called = true;
    ++called;
    waiter->call.NotifyOne();
  }
  idle.clear();
  watch.NotifyOne();
}

void Batcher::Impl::WaitForCall() {
  if (unused.empty()) {
    unused.push_back(waiters.emplace_back(std::make_unique<Waiter>()).get());
  }
  Waiter* const self = unused.back();
  unused.pop_back();
  idle.push_back(self);
  while (!self->is_called) self->call.Wait(&mu);
  self->is_called = false;
  --called;
  unused.push_back(self);
}

Batcher::Batcher(const Options& options, const Clock* clock)
    : impl_(std::make_unique<Impl>(options, clock)) {}

Batcher::~Batcher() { assert(depth().requests == 0); }

absl::Status Batcher::Admit(const std::string& client, int priority, TimePoint deadline,
                            const Plan* plan) {
  const PredictedSeconds seconds = plan == nullptr ? PredictedSeconds{} : impl_->SecondsOf(*plan);
  Refusal refusal{};
  absl::Status status = impl_->WouldTake({client, priority, deadline, seconds}, &refusal);
  if (!status.ok()) impl_->Refused(refusal);
  return status;
}

absl::Status Batcher::AdmitToAny(std::span<Batcher* const> batchers, const std::string& client,
                                 int priority, TimePoint deadline) {
  assert(!batchers.empty());
  absl::Status first;
  Refusal refusal{};
  for (Batcher* const batcher : batchers) {
    Refusal own{};
    absl::Status status = batcher->impl_->WouldTake({client, priority, deadline, {}}, &own);
    if (status.ok()) return status;
    if (!first.ok()) continue;
    first = std::move(status);
    refusal = own;
  }
  batchers[0]->impl_->Refused(refusal);
  return first;
}

double Batcher::SecondsUntilDone(const std::string& client, int priority, const Plan& plan) const {
  const PredictedSeconds seconds = impl_->SecondsOf(plan);
  const TimePoint now = impl_->clock->Now();
  Refusal refusal{};
  const MutexLock lock(&impl_->mu);
  if (!impl_->Check(client, &refusal).ok()) return std::numeric_limits<double>::infinity();
  if (impl_->waiting.requests() == 0 && impl_->running.empty()) return seconds.likely;
  return seconds.likely + impl_->SecondsAheadOf({client, priority, TimePoint::max(), seconds}, now);
}

absl::Status Batcher::Submit(std::unique_ptr<Task>& task) {
  assert(task != nullptr && task->cancelled != nullptr && task->charged_bytes >= 0);
  const PredictedSeconds seconds = impl_->SecondsOf(*task->plan);
  const TimePoint now = impl_->clock->Now();
  Refusal refusal = Refusal::kDeadline;
  AllDropped dropped;
  Waiter* waiter = nullptr;
  absl::Status status;
  {
    const MutexLock lock(&impl_->mu);
    status = impl_->Check(task->client, &refusal);
    if (status.ok()) {
      status = CheckAlive(*task, now);
      const Waiting::Candidate candidate{task->client, task->priority, task->deadline, seconds};
      if (status.ok()) status = impl_->CheckHopeless(candidate, now);
      refusal = RefusalOf(status);
    }
    if (status.ok()) {
      if (impl_->waiting.requests() >= impl_->options.max_queue_requests) {
        dropped.push_back({nullptr,
                           QueueFullStatus(impl_->options.max_queue_requests,
                                           ", a client with fewer took its place"),
                           Refusal::kQueueFull});
        dropped.back().task = impl_->waiting.TakePlaceFor(task->client);
      }
      try {
        impl_->waiting.Add(std::move(task), seconds);
      } catch (const std::bad_alloc&) {
        status = NoMemory();
        refusal = Refusal::kBytes;
      }
      if (status.ok()) waiter = impl_->Call(now, impl_->coming);
    }
  }
  if (waiter != nullptr) waiter->call.NotifyOne();
  if (!status.ok()) impl_->Refused(refusal);
  impl_->Answer(std::move(dropped), now);
  return status;
}

Batcher::Batch Batcher::Pull() {
  for (;;) {
    AllDropped dropped;
    Batch batch;
    Waiter* waiter = nullptr;
    TimePoint now;
    bool is_over = false;
    {
      const MutexLock lock(&impl_->mu);
      impl_->coming = std::max(0, impl_->coming - 1);
      for (;;) {
        now = impl_->clock->Now();
        impl_->waiting.TakeDropped(now, &dropped);
        // Dropped requests first: they must be answered even if there is no memory for a batch.
        if (dropped.empty()) batch = impl_->TakeBest(now);
        impl_->CallAllIfOver();
        is_over = impl_->closed && impl_->waiting.requests() == 0;
        if (!batch.tasks.empty() || !dropped.empty() || is_over) break;
        impl_->WaitForCall();
      }
      waiter = impl_->Call(now, impl_->coming);
    }
    if (waiter != nullptr) waiter->call.NotifyOne();
    impl_->Answer(std::move(dropped), now);
    if (!batch.tasks.empty() || is_over) return batch;
  }
}

Batcher::Batch Batcher::TryPull() {
  AllDropped dropped;
  Batch batch;
  const TimePoint now = impl_->clock->Now();
  {
    const MutexLock lock(&impl_->mu);
    impl_->waiting.TakeDropped(now, &dropped);
    batch = impl_->TakeBest(now);
  }
  impl_->Answer(std::move(dropped), now);
  return batch;
}

bool Batcher::Ended(uint64_t id) {
  const TimePoint now = impl_->clock->Now();
  const MutexLock lock(&impl_->mu);
  ++impl_->coming;
  impl_->last_ended = std::chrono::steady_clock::now();
  const Running::Run run = impl_->running.End(id, now);
  impl_->waiting.turns().End(run.client, run.seconds.likely);
  return run.was_alone;
}

void Batcher::Watch() {
  const MutexLock lock(&impl_->mu);
  TimePoint last = std::chrono::steady_clock::now();
  while (!impl_->closed || impl_->waiting.requests() > 0) {
    const TimePoint now = std::chrono::steady_clock::now();
    if (impl_->waiting.requests() > 0) last = now;
    // A lane that has not pulled by now is busy with its answers: wake another one.
    const int trusted = now - impl_->last_ended < kWatchEvery ? impl_->coming : 0;
    Waiter* const waiter = impl_->Call(impl_->clock->Now(), trusted);
    if (waiter != nullptr) waiter->call.NotifyOne();
    if (now - last < kWatchFor) {
      impl_->watch.WaitUntil(&impl_->mu, now + kWatchEvery);
    } else {
      impl_->watch_sleeps = true;
      impl_->watch.Wait(&impl_->mu);
      impl_->watch_sleeps = false;
      last = std::chrono::steady_clock::now();
    }
  }
}

void Batcher::Sweep() {
  AllDropped dropped;
  const TimePoint now = impl_->clock->Now();
  {
    const MutexLock lock(&impl_->mu);
    impl_->waiting.TakeDropped(now, &dropped);
    impl_->CallAllIfOver();
  }
  impl_->Answer(std::move(dropped), now);
}

void Batcher::Close() {
  const MutexLock lock(&impl_->mu);
  impl_->closed = true;
  impl_->CallAllIfOver();
}

void Batcher::Fail(const absl::Status& status) {
  AllDropped dropped;
  const TimePoint now = impl_->clock->Now();
  {
    const MutexLock lock(&impl_->mu);
    if (!impl_->failure.ok()) return;
    impl_->waiting.TakeAll(status, Refusal::kDevice, &dropped);
    impl_->failure = status;
    impl_->CallAllIfOver();
  }
  impl_->Answer(std::move(dropped), now);
}

Batcher::Depth Batcher::depth() const {
  const TimePoint now = impl_->clock->Now();
  const MutexLock lock(&impl_->mu);
  return {.requests = impl_->waiting.requests(),
          .bytes = impl_->waiting.bytes(),
          .oldest_seconds = Seconds(now - impl_->waiting.oldest(now))};
}

int64_t Batcher::waiting() const {
  const MutexLock lock(&impl_->mu);
  return impl_->waiting.requests();
}

}  // namespace attnd
