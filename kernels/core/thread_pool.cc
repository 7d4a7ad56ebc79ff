#include "kernels/core/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <chrono>
#include <exception>
#include <thread>
#include <vector>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "kernels/core/mutex.h"

namespace attnd {
namespace {

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

// The CPUs of this process if the pool is meant to fill them all, else none: a smaller pool would
// crowd onto the first ones together with every other process that thinks so.
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

}  // namespace

struct ThreadPool::Impl {
  // The job. Plain members: written by the caller before `remaining` is raised, read only by who
  // has claimed an item. While a claimed item is not done the caller cannot return, so a worker
  // that comes late either claims an item of the next job or touches nothing.
  const std::function<void(int64_t, int)>* fn = nullptr;
  int64_t items = 0;

  alignas(64) std::atomic<int64_t> remaining = 0;  // items nobody has claimed
  alignas(64) std::atomic<int64_t> done = 0;
  alignas(64) std::atomic<int> sleepers = 0;
  std::atomic<bool> caller_sleeps = false;
  std::atomic<bool> stop = false;
  std::atomic<int64_t> launches = 0;

  Mutex mu;
  CondVar work_ready, work_done;  // with mu
  std::exception_ptr error;       // guarded by mu; the first
  int workers = 0;                // constant after construction
  std::vector<std::thread> threads;

  // Draws and runs items until none is left.
  void Drain(int thread) {
    for (;;) {
      int64_t left = remaining.load(std::memory_order_relaxed);
      do {
        if (left <= 0) return;
      } while (!remaining.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel,
                                                std::memory_order_relaxed));
      const int64_t total = items;
      try {
        (*fn)(total - left, thread);
      } catch (...) {
        MutexLock lock(&mu);
        if (error == nullptr) error = std::current_exception();
      }
      if (done.fetch_add(1) + 1 == total && caller_sleeps) {
        { MutexLock lock(&mu); }  // the caller is either before its check or in Wait
        work_done.NotifyOne();
      }
    }
  }

  void Work(int thread, int cpu) {
    if (cpu >= 0) PinTo(cpu);
    SetFloatMode(FloatMode() | kFlushToZero);
    const auto has_work = [this] { return remaining > 0 || stop; };
    while (!stop) {
      Drain(thread);
      if (SpinUntil(has_work)) continue;
      MutexLock lock(&mu);
      ++sleepers;  // before the check: Wake reads it after raising `remaining`
      while (!has_work()) work_ready.Wait(&mu);
      --sleepers;
    }
  }

  void Wake() {
    if (sleepers == 0) return;
    { MutexLock lock(&mu); }  // a worker is either before its check or in Wait
    work_ready.NotifyAll();
  }

  void WaitUntilDone() {
    const auto all_done = [this] { return done == items; };
    if (SpinUntil(all_done)) return;
    MutexLock lock(&mu);
    caller_sleeps = true;  // before the check: who finishes reads it after the last item
    while (!all_done()) work_done.Wait(&mu);
    caller_sleeps = false;
  }
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>()) {
  assert(threads >= 1);
  impl_->workers = std::max(0, threads - 1);
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
                             const std::function<void(int64_t, int)>& fn) {
  Impl& job = *impl_;
  ++job.launches;
  const ScopedFlushToZero mode;
  if (!parallel || items <= 1 || job.workers == 0) {
    for (int64_t item = 0; item < items; ++item) fn(item, 0);
    return;
  }
  job.fn = &fn;
  job.items = items;
  job.done = 0;
  job.remaining = items;
  job.Wake();
  job.Drain(/*thread=*/0);
  job.WaitUntilDone();
  std::exception_ptr error;
  {
    MutexLock lock(&job.mu);
    std::swap(error, job.error);
  }
  if (error != nullptr) std::rethrow_exception(error);
}

}  // namespace attnd
