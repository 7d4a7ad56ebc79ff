// The jobs of a thread pool and the claiming of their items, without locks.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>

#include "kernels/core/mutex.h"
#include "kernels/core/run_control.h"

namespace attnd {

// A place in the table, used by one ParallelFor after the other.
struct Job {
  // Written by its caller before `remaining` is raised, read only by threads that have claimed an
  // item. While a claimed item is not done the caller cannot return, so a worker that comes late
  // either claims an item of the next job in this place or touches nothing.
  const std::function<void(int64_t, int)>* fn = nullptr;
  RunControl* run = nullptr;
  int64_t items = 0;

  alignas(64) std::atomic<int64_t> remaining = 0;  // unclaimed items
  alignas(64) std::atomic<int64_t> done = 0;
  std::atomic<uint64_t> rank = 0;              // lower goes first
  std::atomic<int64_t> passed_over_since = 0;  // ns; 0: not since an item was claimed
  std::atomic<bool> caller_sleeps = false;

  CondVar finished;          // with the pool's mutex, as is
  std::exception_ptr error;  // the first
};

// Lower goes first: priority, then the rest of the prediction on `threads` threads.
uint64_t RankOf(const RunControl* run, int threads);

// Sets of jobs are words with a bit for each place.
class JobTable {
 public:
  static constexpr int kJobs = 16;  // at once
  static constexpr int64_t kNone = -1;
  static constexpr uint64_t kAnyRank = UINT64_MAX;

  // Null when all places are taken.
  Job* Open(int64_t items, const std::function<void(int64_t, int)>& fn, RunControl* run,
            uint64_t rank);
  // REQUIRES: all items are done.
  void Close(Job* job);

  uint64_t Bit(const Job* job) const { return uint64_t{1} << (job - jobs_); }
  uint64_t open() const { return bits_.load() >> kOpen & kAll; }        // under way
  uint64_t offered() const { return bits_.load() >> kOffered & kAll; }  // with unclaimed items

  // Of `jobs` the most urgent, if its rank is below `rank`.
  Job* MostUrgent(uint64_t jobs, uint64_t rank);
  // The same of all that have unclaimed items, but for one that was passed over for `patience_ns`:
  // then it is overdue.
  struct Choice {
    Job* job = nullptr;
    bool is_overdue = false;
  };
  Choice Next(int64_t patience_ns);

  // Claims an item for the caller to run and returns its number; kNone: none is left.
  int64_t Claim(Job* job);
  // Claims all that is left; how many.
  int64_t ClaimRest(Job* job);

 private:
  static constexpr uint64_t kAll = (uint64_t{1} << kJobs) - 1;
  static constexpr int kOpen = kJobs, kOffered = 2 * kJobs;

  Job jobs_[kJobs];
  // Places that are taken, then those of open(), then those of offered().
  alignas(64) std::atomic<uint64_t> bits_ = 0;
};

}  // namespace attnd
