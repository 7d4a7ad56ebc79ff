// What steers one running batch from outside: an early end, and how urgent it is.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace attnd {

// One for each running batch, given to its Stream, and alive until that run has returned. Thread
// safe and without locks: any thread may stop the run; the threads that compute read it between
// items of work and at check points (thread_pool.h).
//
// A stopped run is not undone: items that have not begun are left out, those that have begun end at
// their next check point, and Engine::Execute returns CANCELLED. A stop is final.
class RunControl {
 public:
  using Clock = std::chrono::steady_clock;
  using Now = Clock::time_point (*)();

  // `predicted_seconds`: of the whole run with all threads of the device, as Work::seconds of its
  // plan; 0: as urgent as possible. `now`: the clock that StopAt refers to.
  explicit RunControl(int priority = 0, double predicted_seconds = 0, Now now = &Clock::now);

  // Idempotent.
  void Cancel() { stopped_.store(true, std::memory_order_relaxed); }
  // Ends the run at `when`. Replaces an earlier call that has not taken effect.
  void StopAt(Clock::time_point when);
  // Ends the run after `time` from now. Time that it waits for other runs from now on is added.
  void StopAfter(Clock::duration time);
  // Cheap: some loads, and a read of the clock if the run has an end.
  bool stopped() const;

  // Higher goes first.
  int priority() const { return priority_; }
  double predicted_seconds() const { return predicted_seconds_; }
  // What is left of the prediction when `threads` share the work. Within a priority the run with
  // the least goes first. At least an eighth of the prediction; for a run that takes longer than
  // predicted it is as long as the run is late, so that it does not count as short.
  double RemainingSeconds(int threads) const;
  // Seconds of all threads in items of this run, added up by the pool.
  double spent_seconds() const;
  void AddSpent(std::chrono::nanoseconds time);
  // Time that its calling thread gave to more urgent runs, added up by the pool, after the time for
  // which it was passed over before it began.
  void AddWaited(std::chrono::nanoseconds time);
  // That time in parts of the prediction, 1 at most.
  double waited_share() const;

 private:
  static constexpr int64_t kNever = INT64_MAX;

  const int priority_;
  const double predicted_seconds_;
  // Also set by the thread that first sees that the end has passed: a later StopAt cannot revive a
  // run whose items were left out.
  mutable std::atomic<bool> stopped_ = false;
  std::atomic<int64_t> end_ns_ = kNever;      // of Clock
  std::atomic<int64_t> own_end_ns_ = kNever;  // the same, without time that it waits for others
  std::atomic<int64_t> spent_ns_ = 0, waited_ns_ = 0;
  const Now now_;
};

// The run for which a thread works while the scope is alive; scopes of a thread nest. The pool
// opens one for each item that it runs, Engine::Execute one for the work of the host.
class RunScope {
 public:
  // `run` null: nothing stops it.
  explicit RunScope(const RunControl* run);
  virtual ~RunScope();
  RunScope(const RunScope&) = delete;
  RunScope& operator=(const RunScope&) = delete;

  virtual bool Check() { return run_ != nullptr && run_->stopped(); }

 private:
  const RunControl* const run_;
  RunScope* const outer_;  // of this thread
};

// Code that may take longer than a millisecond calls this about every 50 us of work (it costs some
// tens of nanoseconds): inside the items of kernels, and in loops of the host that build patterns,
// draw, sort or walk lists. True: the run is stopped, and the caller returns as soon as it can. Its
// output may then hold any values, since it is thrown away, but is valid memory and keeps the rules
// that other code relies on (indices in range). False outside of any scope.
// Inside an item of the pool the call may run more urgent work, on this thread.
bool CheckPoint();

}  // namespace attnd
