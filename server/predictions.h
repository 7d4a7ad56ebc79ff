// Predicts how long requests take, from their plans and from measured runs of others.
#pragma once

#include <chrono>
#include <map>
#include <tuple>

#include "kernels/core/mutex.h"
#include "kernels/engine/engine.h"
#include "server/task.h"

namespace attnd {

// A plan predicts seconds from the peak speed of the machine; real runs differ by a factor that
// depends on the method and the device. The factor is learned for each method, direction and
// device, and for gradients that may add in any order, as a smoothed ratio measured/predicted,
// within kLeast..kMost: one outlier moves it by at most a quarter (of its logarithm). It is 1 at
// first, and without new measurements its logarithm halves every kHalfLife, since requests that are
// refused because of it are never measured.
//
// Thread safe.
class Predictions {
 public:
  static constexpr double kLeast = 0.25, kMost = 8;
  static constexpr std::chrono::seconds kHalfLife{60};

  // The clock outlives it.
  explicit Predictions(const Clock* clock) : clock_(clock) {}

  // The seconds of a run of this plan. Once enough runs of its kind were measured, the last within
  // kHalfLife, `sure` is kSure and `ahead` is kAhead times the likely seconds: with less margin,
  // every run of an overloaded server would end just after its deadline. Until then both factors
  // are kUnsure.
  PredictedSeconds Of(const Plan& plan) const;
  static constexpr double kSure = 0.8, kAhead = 1.25, kUnsure = 0.5;

  // A batch of such plans, predicted by the plans alone to take `predicted` seconds, took
  // `measured`. Ignored if it is shorter than kShort, where measurements are inaccurate.
  void Learn(const Plan& plan, double predicted, double measured);
  static constexpr double kShort = 0.005;

 private:
  struct Learned {
    double log_ratio = 0;
    int measured = 0;
    TimePoint last;  // when the last one was measured
  };
  // The last: Plan::device, Plan::is_deterministic.
  using Kind = std::tuple<const Method*, Direction, size_t, bool>;
  static Kind KindOf(const Plan& plan) {
    return {plan.method, plan.direction, plan.device, plan.is_deterministic};
  }

  static double LogRatio(const Learned& learned, TimePoint now);

  const Clock* const clock_;
  mutable Mutex mu_;
  std::map<Kind, Learned> learned_ ATTND_GUARDED_BY(mu_);
};

}  // namespace attnd
