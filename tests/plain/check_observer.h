// Runs whose check points call a function.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "kernels/core/run_control.h"

namespace attnd::testing {

// One object at a time; it outlives its runs.
class CheckObserver {
 public:
  // `at_check`: called at every check point of a run that is not stopped, by the thread that
  // works; true stops the run.
  explicit CheckObserver(std::function<bool()> at_check) { at_check_ = std::move(at_check); }
  ~CheckObserver() { at_check_ = nullptr; }
  CheckObserver(const CheckObserver&) = delete;
  CheckObserver& operator=(const CheckObserver&) = delete;

  std::unique_ptr<RunControl> NewRun() const {
    auto run = std::make_unique<RunControl>(/*priority=*/0, /*predicted_seconds=*/0, &Now);
    run->StopAt(TimePoint(std::chrono::hours(1)));
    return run;
  }

 private:
  using TimePoint = RunControl::Clock::time_point;
  static TimePoint Now() { return at_check_() ? TimePoint::max() : TimePoint::min(); }

  static inline std::function<bool()> at_check_;
};

// Where two threads wait for each other.
class Meeting {
 public:
  // Returns when both have come; false: the other has not come for ten seconds.
  bool Come() {
    std::unique_lock<std::mutex> lock(mu_);
    ++come_;
    both_.notify_all();
    return both_.wait_for(lock, std::chrono::seconds(10), [&] { return come_ >= 2; });
  }

 private:
  std::mutex mu_;
  std::condition_variable both_;
  int come_ = 0;
};

}  // namespace attnd::testing
