#include "kernels/cpu/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "kernels/core/mutex.h"
#include "kernels/cpu/job_table.h"

namespace attnd {
namespace {

using Clock = RunControl::Clock;

// Long enough to bridge the gap between two primitives, short enough to leave an idle core alone.
constexpr std::chrono::microseconds kSpin{50};

#if defined(__SSE2__)
constexpr unsigned kFlushToZero = 0x8040;  // FTZ | DAZ
unsigned FloatMode() { return _mm_getcsr(); }
void SetFloatMode(unsigned mode) { _mm_setcsr(mode); }
void Pause() { _mm_pause(); }
#else
constexpr unsigned kFlushToZero = 0;
unsigned FloatMode() { return 0; }
void SetFloatMode(unsigned) {}
void Pause() { std::this_thread::yield(); }
#endif

class ScopedFlushToZero {
 public:
  ScopedFlushToZero() : before_(FloatMode()) { SetFloatMode(before_ | kFlushToZero); }
  ~ScopedFlushToZero() { SetFloatMode(before_); }
  ScopedFlushToZero(const ScopedFlushToZero&) = delete;
  ScopedFlushToZero& operator=(const ScopedFlushToZero&) = delete;

 private:
  const unsigned before_;
};

// True as soon as `done()`; false when that took longer than kSpin.
template <class Done>
bool SpinUntil(const Done& done) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return done();
}

// The CPUs of this process if the pool has a thread for each, else none: smaller pools of several
// processes would all be pinned to the first CPUs.
std::vector<int> CpusToPin(int threads) {
  std::vector<int> cpus;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof(mask), &mask) != 0 || CPU_COUNT(&mask) != threads) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &mask)) cpus.push_back(cpu);
  }
  return cpus;
}

void PinTo(int cpu) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(cpu, &mask);
  pthread_setaffinity_np(pthread_self(), sizeof(mask), &mask);  // a hint: failing does no harm
}

constexpr int kDepth = 4;  // items of several jobs on one stack

// A thread that waited for `patience` is not interrupted until then.
thread_local Clock::time_point undisturbed_until;

}  // namespace

struct ThreadPool::Impl {
  const int workers;
  const std::chrono::nanoseconds patience;

  JobTable jobs;
  alignas(64) std::atomic<int> sleepers = 0;
  std::atomic<int> parked = 0;  // callers
  std::atomic<bool> stop = false;
  std::atomic<int64_t> launches = 0;

  Mutex mu;  // also guards the errors of jobs
  CondVar work_ready, closed;
  std::vector<std::thread> threads;

  // Where an item runs: `busy` are the jobs that have one on this thread's stack, this one
  // included.
  struct Place {
    int thread = 0, depth = 0;
    uint64_t busy = 0;
  };
  class Item;

  Impl(int worker_count, std::chrono::nanoseconds patience_time)
      : workers(worker_count), patience(patience_time) {}

  // False if nothing was left to claim. A job that is overdue begins its turn.
  bool RunOne(Job* job, Place place, bool is_overdue = false);
  // Workers: runs an item of the job, and more while the thread is not to be interrupted.
  void RunSome(const JobTable::Choice& choice, int thread);
  void Finish(Job* job, int64_t count);
  // How long a thread that waited for `patience` runs on: the longer the more of its prediction its
  // run has waited.
  std::chrono::nanoseconds UndisturbedFor(const RunControl* run) const {
    constexpr int64_t kParts = 8, kMost = 16;
    const double waits = run == nullptr ? 0 : run->waited_share();
    return patience / kParts * std::clamp(static_cast<int64_t>(kMost * waits), int64_t{1}, kMost);
  }
  // Callers: waits while a job that is more urgent than `rank` is under way.
  void ParkBehind(uint64_t rank, uint64_t busy, RunControl* run);
  // Workers: runs items of such jobs.
  void RunMoreUrgent(uint64_t rank, const Place& place, const RunControl* run);

  void Work(int thread, int cpu);
  void Wake();
  void RunAsCaller(Job* job);
  void WaitUntilDone(Job* job);
  std::exception_ptr Close(Job* job);
};

// An item that is under way on this thread.
class ThreadPool::Impl::Item final : public RunScope {
 public:
  Item(Impl* pool, Job* job, const Place& place)
      : RunScope(job->run), pool_(*pool), job_(*job), place_(place) {}

  bool Check() override {
    if (RunScope::Check()) return true;
    const uint64_t others = pool_.jobs.open() & ~place_.busy;
    if (others == 0) return false;
    const uint64_t rank = job_.rank.load(std::memory_order_relaxed);
    if (pool_.jobs.MostUrgent(others, rank) == nullptr) return false;
    const auto begin = Clock::now();
    if (begin < undisturbed_until) return false;
    if (place_.thread == 0) {
      pool_.ParkBehind(rank, place_.busy, job_.run);
    } else if (place_.depth < kDepth) {
      pool_.RunMoreUrgent(rank, place_, job_.run);
    }
    away_ += Clock::now() - begin;
    return RunScope::Check();
  }

  // Time that went to other jobs.
  std::chrono::nanoseconds away() const { return away_; }

 private:
  Impl& pool_;
  Job& job_;
  const Place place_;
  std::chrono::nanoseconds away_{0};
};

bool ThreadPool::Impl::RunOne(Job* job, Place place, bool is_overdue) {
  const int64_t number = jobs.Claim(job);
  if (number == JobTable::kNone) return false;
  RunControl* const run = job->run;
  if (run != nullptr && run->stopped()) {
    Finish(job, jobs.ClaimRest(job) + 1);
    return true;
  }
  const auto begin = run == nullptr ? Clock::time_point() : Clock::now();
  if (is_overdue) undisturbed_until = begin + UndisturbedFor(run);
  std::chrono::nanoseconds away;
  {
    place.busy |= jobs.Bit(job);
    ++place.depth;
    Item item(this, job, place);
    try {
      (*job->fn)(number, place.thread);
    } catch (...) {
      MutexLock lock(&mu);
      if (job->error == nullptr) job->error = std::current_exception();
    }
    away = item.away();
  }
  if (run != nullptr) {
    run->AddSpent(Clock::now() - begin - away);
    const bool is_alone = (jobs.open() & ~jobs.Bit(job)) == 0;
    if (!is_alone) job->rank.store(RankOf(run, workers + 1), std::memory_order_relaxed);
  }
  Finish(job, 1);
  return true;
}

void ThreadPool::Impl::RunSome(const JobTable::Choice& choice, int thread) {
  undisturbed_until = {};
  bool goes_on = RunOne(choice.job, {.thread = thread}, choice.is_overdue);
  while (goes_on && undisturbed_until != Clock::time_point() && Clock::now() < undisturbed_until) {
    goes_on = RunOne(choice.job, {.thread = thread});
  }
}

// Once the last item is counted the caller may return, which destroys the job.
void ThreadPool::Impl::Finish(Job* job, int64_t count) {
  const int64_t total = job->items;
  if (job->done.fetch_add(count) + count != total || !job->caller_sleeps) return;
  { MutexLock lock(&mu); }  // the caller is either before its check or in Wait
  job->finished.NotifyAll();
}

void ThreadPool::Impl::ParkBehind(uint64_t rank, uint64_t busy, RunControl* run) {
  const auto outranked = [&] { return jobs.MostUrgent(jobs.open() & ~busy, rank) != nullptr; };
  const auto begin = Clock::now();
  if (!outranked() || begin < undisturbed_until) return;
  const auto until = begin + patience;
  MutexLock lock(&mu);
  ++parked;  // before the check: Close reads it after clearing its bit
  while (outranked() && !(run != nullptr && run->stopped())) {
    if (Clock::now() >= until) {
      undisturbed_until = Clock::now() + UndisturbedFor(run);
      break;
    }
    closed.WaitUntil(&mu, until);
  }
  --parked;
  if (run != nullptr) run->AddWaited(Clock::now() - begin);
}

void ThreadPool::Impl::RunMoreUrgent(uint64_t rank, const Place& place, const RunControl* run) {
  const auto until = Clock::now() + patience;
  while (Job* job = jobs.MostUrgent(jobs.offered() & ~place.busy, rank)) {
    RunOne(job, place);
    if (Clock::now() < until) continue;
    undisturbed_until = Clock::now() + UndisturbedFor(run);
    return;
  }
}

void ThreadPool::Impl::Work(int thread, int cpu) {
  if (cpu >= 0) PinTo(cpu);
  SetFloatMode(FloatMode() | kFlushToZero);
  const auto has_work = [this] { return jobs.offered() != 0 || stop; };
  while (!stop) {
    for (auto next = jobs.Next(patience.count()); next.job != nullptr;
         next = jobs.Next(patience.count())) {
      RunSome(next, thread);
    }
    if (SpinUntil(has_work)) continue;
    MutexLock lock(&mu);
    ++sleepers;  // before the check: Wake reads it after the offer
    while (!has_work()) work_ready.Wait(&mu);
    --sleepers;
  }
}

void ThreadPool::Impl::Wake() {
  if (sleepers == 0) return;
  { MutexLock lock(&mu); }  // a worker is either before its check or in Wait
  work_ready.NotifyAll();
}

void ThreadPool::Impl::RunAsCaller(Job* job) {
  const uint64_t own = jobs.Bit(job);
  do {
    const bool is_alone = (jobs.open() & ~own) == 0;
    if (!is_alone) ParkBehind(job->rank.load(std::memory_order_relaxed), own, job->run);
  } while (RunOne(job, {.thread = 0}));
}

void ThreadPool::Impl::WaitUntilDone(Job* job) {
  const auto all_done = [job] { return job->done == job->items; };
  if (SpinUntil(all_done)) return;
  MutexLock lock(&mu);
  job->caller_sleeps =
      true;  // before the check: the thread that finishes reads it after the last item
  while (!all_done()) job->finished.Wait(&mu);
  job->caller_sleeps = false;
}

std::exception_ptr ThreadPool::Impl::Close(Job* job) {
  std::exception_ptr error;
  {
    MutexLock lock(&mu);
    std::swap(error, job->error);
  }
  jobs.Close(job);
  if (parked > 0) {
    { MutexLock lock(&mu); }  // a caller is either before its check or in Wait
    closed.NotifyAll();
  }
  return error;
}

ThreadPool::ThreadPool(int threads, std::chrono::nanoseconds patience)
    : impl_(std::make_unique<Impl>(std::max(0, threads - 1), patience)) {
  assert(threads >= 1);
  const std::vector<int> cpus = CpusToPin(threads);
  for (int t = 1; t < threads; ++t) {
    const int cpu = cpus.empty() ? -1 : cpus[t];
    impl_->threads.emplace_back([impl = impl_.get(), t, cpu] { impl->Work(t, cpu); });
  }
}

ThreadPool::~ThreadPool() {
  impl_->stop = true;
  { MutexLock lock(&impl_->mu); }
  impl_->work_ready.NotifyAll();
  for (std::thread& thread : impl_->threads) thread.join();
}

int ThreadPool::threads() const { return impl_->workers + 1; }

int64_t ThreadPool::launches() const { return impl_->launches; }

void ThreadPool::ParallelFor(int64_t items, bool parallel,
                             const std::function<void(int64_t, int)>& fn, RunControl* run) {
  Impl& pool = *impl_;
  ++pool.launches;
  const ScopedFlushToZero mode;
  Job* const job =
      parallel && items > 0 ? pool.jobs.Open(items, fn, run, RankOf(run, threads())) : nullptr;
  if (job == nullptr) {
    const RunScope scope(run);
    // This job may read what a stopped job has left unwritten.
    if (CheckPoint()) return;
    for (int64_t item = 0; item < items && !(parallel && CheckPoint()); ++item) fn(item, 0);
    return;
  }
  if (items > 1) pool.Wake();
  pool.RunAsCaller(job);
  pool.WaitUntilDone(job);
  if (const std::exception_ptr error = pool.Close(job)) std::rethrow_exception(error);
}

}  // namespace attnd
