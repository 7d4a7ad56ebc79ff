// What is known about how long requests take: their plans, and what was measured of others.
#pragma once

#include <map>
#include <utility>

#include "kernels/core/mutex.h"
#include "kernels/engine.h"

namespace attnd {

// A plan predicts seconds from what the machine can do at its best; what really runs differs by a
// factor that depends on the method. It is learned for each method and direction as a smoothed
// ratio measured/predicted, within kLeast..kMost: one outlier moves it by a quarter (of its
// logarithm) at most. Without a measurement it is 1.
//
// Thread safe.
class Predictions {
 public:
  static constexpr double kLeast = 0.25, kMost = 8;

  // Seconds that a run of this plan likely takes, alone on the machine.
  double Likely(const Plan& plan) const;

  // The part of the likely seconds that a run takes for sure: 0.5 until some runs of its kind were
  // measured, then 0.8. Nothing is refused for its deadline that could meet it with this part.
  double Sure(const Plan& plan) const;

  // A batch of such plans, predicted to take `predicted` seconds by the plans alone, took
  // `measured`. What is too short to tell (below kShort) is ignored.
  void Learn(const Plan& plan, double predicted, double measured);
  static constexpr double kShort = 0.005;

  // The part that is sure of what nothing is known about.
  static constexpr double kUnsure = 0.5;

 private:
  struct Learned {
    double log_ratio = 0;
    int measured = 0;
  };
  using Kind = std::pair<const Method*, Direction>;

  mutable Mutex mu_;
  std::map<Kind, Learned> learned_ ATTND_GUARDED_BY(mu_);
};

}  // namespace attnd
