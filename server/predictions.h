// What is known about how long requests take: their plans, and what was measured of others.
#pragma once

#include <chrono>
#include <map>
#include <tuple>

#include "kernels/core/mutex.h"
#include "kernels/engine/engine.h"
#include "server/task.h"

namespace attnd {

// A plan predicts seconds from what the machine can do at its best; what really runs differs by a
// factor that depends on the method and the device. It is learned for each method, direction and
// device as a smoothed ratio measured/predicted, within kLeast..kMost: one outlier moves it by a
// quarter (of its logarithm) at most. Without a measurement it is 1, and it goes back there by half
// (of its logarithm) in kHalfLife without one: what is refused because of it is never measured.
//
// Thread safe.
class Predictions {
 public:
  static constexpr double kLeast = 0.25, kMost = 8;
  static constexpr std::chrono::seconds kHalfLife{60};

  // The clock outlives it.
  explicit Predictions(const Clock* clock) : clock_(clock) {}

  // What a run of this plan takes. Once some runs of its kind were measured, the last within
  // kHalfLife, kSure of the likely seconds are sure, and those behind it count kAhead of them:
  // otherwise, once more is asked for than can be done, all that is begun is just too late. Until
  // then both are kUnsure.
  PredictedSeconds Of(const Plan& plan) const;
  static constexpr double kSure = 0.8, kAhead = 1.25, kUnsure = 0.5;

  // A batch of such plans, predicted to take `predicted` seconds by the plans alone, took
  // `measured`. What is too short to tell (below kShort) is ignored.
  void Learn(const Plan& plan, double predicted, double measured);
  static constexpr double kShort = 0.005;

 private:
  struct Learned {
    double log_ratio = 0;
    int measured = 0;
    TimePoint last;  // of them
  };
  using Kind = std::tuple<const Method*, Direction, size_t>;  // the last: Plan::device
  static Kind KindOf(const Plan& plan) { return {plan.method, plan.direction, plan.device}; }

  static double LogRatio(const Learned& learned, TimePoint now);

  const Clock* const clock_;
  mutable Mutex mu_;
  std::map<Kind, Learned> learned_ ATTND_GUARDED_BY(mu_);
};

}  // namespace attnd
