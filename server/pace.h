// How fast predicted seconds pass.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>

#include "server/task.h"

namespace attnd {

// Predicted seconds that are done in a second of work, smoothed over some seconds: below 1 where
// the machine has something else to do, too (what arrives, neighbours). 1 if nothing was counted
// for kValid. Not thread safe.
class Pace {
 public:
  static constexpr double kLeast = 0.1;
  static constexpr std::chrono::seconds kValid{5};
  // Predictions of shorter runs tell nothing.
  static constexpr double kShortSeconds = 0.005;

  // Runs that were predicted to take `predicted` seconds together took `elapsed`, and nothing else
  // ran meanwhile.
  void Count(double predicted, double elapsed, TimePoint now) {
    if (predicted < kShortSeconds) return;
    const double old = std::exp(-elapsed / kSmoothedSeconds);
    passed_ = old * passed_ + elapsed;
    // A run that was stopped has not done all.
    done_ = std::min(old * done_ + predicted, passed_);
    counted_at_ = now;
  }
  double ValueAt(TimePoint now) const {
    return now - counted_at_ > kValid ? 1 : std::max(kLeast, done_ / passed_);
  }

 private:
  static constexpr double kSmoothedSeconds = 2;
  double done_ = kSmoothedSeconds, passed_ = kSmoothedSeconds;
  TimePoint counted_at_;
};

}  // namespace attnd
