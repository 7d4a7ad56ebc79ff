// What steers one running batch from outside: an early end, and how urgent it is.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace attnd {

// One for each running batch, handed to its Stream, and alive until that run has returned. Thread
// safe and without locks: whoever holds it stops the run, the threads that compute read it between
// items of work and at check points (thread_pool.h).
//
// A stopped run is not undone: what has not begun is left out, what has begun leaves at its next
// check point, and Engine::Execute returns CANCELLED. There is no way back.
class RunControl {
 public:
  using Clock = std::chrono::steady_clock;
  using Now = Clock::time_point (*)();

  // `predicted_seconds`: of the whole run with all threads of the device, as Work::seconds of its
  // plan; 0: as urgent as can be. `now`: what StopAt is held against.
  explicit RunControl(int priority = 0, double predicted_seconds = 0, Now now = &Clock::now);

  // Idempotent.
  void Cancel() { stopped_.store(true, std::memory_order_relaxed); }
  // Ends the run at `when`. Replaces an earlier call that has not taken effect.
  void StopAt(Clock::time_point when);
  // Ends the run after `time` from now, without what it waits for others from now on.
  void StopAfter(Clock::duration time);
  // Cheap: some loads, and a read of the clock where there is an end.
  bool stopped() const;

  // Higher goes first.
  int priority() const { return priority_; }
  double predicted_seconds() const { return predicted_seconds_; }
  // What is left of the prediction when `threads` share the work. Inside a priority the shortest
  // goes first. Never below an eighth of the prediction, and of a run that takes longer than
  // predicted as much again as it is late: it is not taken for a short one.
  double RemainingSeconds(int threads) const;
  // Seconds of all threads in items of this run, added up by the pool.
  double spent_seconds() const;
  void AddSpent(std::chrono::nanoseconds time);
  // Time that its caller gave to more urgent runs, added up by the pool, after that for which it
  // was passed over before it began.
  void AddWaited(std::chrono::nanoseconds time);
  // That time in parts of the prediction, 1 at most.
  double waited_share() const;

 private:
  static constexpr int64_t kNever = INT64_MAX;

  const int priority_;
  const double predicted_seconds_;
  // Also set by whoever first sees that the end has passed, so that moving the end cannot bring a
  // run back to life whose items were left out.
  mutable std::atomic<bool> stopped_ = false;
  std::atomic<int64_t> end_ns_ = kNever;      // of Clock
  std::atomic<int64_t> own_end_ns_ = kNever;  // the same, if it does not wait
  std::atomic<int64_t> spent_ns_ = 0, waited_ns_ = 0;
  const Now now_;
};

// What a thread works for, for as long as it lives; scopes of a thread nest. The pool opens one for
// each item that it runs, Engine::Execute one for what the host does.
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

// To be called by whatever may take longer than a millisecond, about every 50 us of work (it costs
// some tens of nanoseconds): inside the items of kernels, and in loops of the host that build
// patterns, draw, sort or walk lists. True: the run is stopped, and the caller returns as soon as
// it can. What it leaves may hold any values, since they are thrown away, but is valid memory and
// keeps the rules that code relies on (indices in range). False outside of any scope.
// Inside an item of the pool more urgent work may run on top of it, on this thread.
bool CheckPoint();

}  // namespace attnd
