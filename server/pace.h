// How fast predicted seconds pass.
#pragma once

#include <algorithm>
#include <cmath>

namespace attnd {

// Predicted seconds that are done in a second of work, smoothed over some seconds: below 1 where
// the machine has something else to do, too (what arrives, neighbours). Not thread safe.
class Pace {
 public:
  static constexpr double kLeast = 0.1;
  // Predictions of shorter runs tell nothing.
  static constexpr double kShortSeconds = 0.005;

  // In `elapsed` seconds, in all of which something ran, a run ended that was predicted to take
  // `predicted`.
  void Count(double predicted, double elapsed) {
    const double old = std::exp(-elapsed / kSmoothedSeconds);
    passed_ = old * passed_ + elapsed;
    const double done = predicted < kShortSeconds ? elapsed : predicted;
    // Most of it may have been done before.
    done_ = std::min(old * done_ + done, passed_);
  }
  double value() const { return std::max(kLeast, done_ / passed_); }

 private:
  static constexpr double kSmoothedSeconds = 2;
  double done_ = kSmoothedSeconds, passed_ = kSmoothedSeconds;
};

}  // namespace attnd
