// How many predicted seconds of work the machine does in a second.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>

#include "server/task.h"

namespace attnd {

// Predicted seconds done in a second of work, smoothed over a few seconds: below 1 where the
// machine has other work, too (receiving messages, other processes). 1 if nothing was counted for
// kValid. Not thread safe.
class Pace {
 public:
  static constexpr double kLeast = 0.1;
  static constexpr std::chrono::seconds kValid{5};
  // Predictions of shorter runs are too inaccurate to count.
  static constexpr double kShortSeconds = 0.005;

  // Runs predicted to take `predicted` seconds together took `elapsed`, and no other ran meanwhile.
  void Count(double predicted, double elapsed, TimePoint now) {
    if (predicted < kShortSeconds) return;
    const double old = std::exp(-elapsed / kSmoothedSeconds);
    passed_ = old * passed_ + elapsed;
    // A stopped run has not done all of its predicted seconds.
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
