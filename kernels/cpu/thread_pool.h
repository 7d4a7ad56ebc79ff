// The pool of worker threads behind a device, shared by all runs on it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "kernels/core/run_control.h"

namespace attnd {

// `threads` ways of work: a caller and threads - 1 workers. Several callers may be inside
// ParallelFor at once, each with a job of its own.
//
// *One job*: items are drawn one at a time from one atomic counter, in index order, so callers put
// the longest first. Completion is counted in items: a worker that wakes up late finds nothing, and
// no thread waits for it. Workers spin for some tens of microseconds after work, then sleep. Every
// worker sets flush-to-zero (denormals cost 20 times).
//
// *Several jobs*: the more urgent goes first: the one of higher priority (RunControl), then the one
// with less predicted time left (a running job's time left shrinks, so that of two equal jobs one
// finishes soon). A job without a RunControl counts as one with no time left.
//   - A worker takes its next item from the most urgent job. At a check point (run_control.h)
//     inside an item it runs items of more urgent jobs on top of its stack, then goes on.
//   - A caller runs items of its own job only. At check points and between items it sleeps while a
//     more urgent job is under way, so that no more than `threads` threads compute.
//   - Nothing starves: a caller that waited for `patience` goes on for an eighth of it, and for up
//     to twice as long as it waited once the waiting of its run adds up to what the run is
//     predicted to take: beside a more urgent one it then has about half. A worker does the same
//     for a job whose items were passed over for as long, one item at least.
// An item computes the same on every thread, so results do not depend on the other jobs.
//
// A stopped job (RunControl) gives up the items that no thread has begun, without a call of `fn`;
// its ParallelFor returns when those that were begun have left.
//
// What `fn` throws comes out of its ParallelFor after all items are done (the first, if several
// do). `fn` must not wait for another item of its job, nor call ParallelFor. The caller's own
// floating point mode is set for the duration of the call and restored.
class ThreadPool {
 public:
  static constexpr std::chrono::nanoseconds kPatience = std::chrono::milliseconds(10);

  explicit ThreadPool(int threads, std::chrono::nanoseconds patience = kPatience);
  ~ThreadPool();

  int threads() const;

  // Calls fn(item, thread) for every item in [0, items), thread in [0, threads()): 0 is the caller,
  // and no two items of a job that are under way have the same. Returns when all are done.
  // `parallel` false runs all on the caller at once: for work too small to wake a worker (about
  // 20 us; waking a sleeping worker costs 50).
  // `run` outlives the call; null: nothing stops the job.
  void ParallelFor(int64_t items, bool parallel, const std::function<void(int64_t, int)>& fn,
                   RunControl* run = nullptr);

  // ParallelFor calls so far. Tests count with it that a primitive launches once for a list.
  int64_t launches() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace attnd
