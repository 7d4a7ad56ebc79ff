#include "server/predictions.h"

#include <algorithm>
#include <cmath>

namespace attnd {
namespace {

constexpr double kWeight = 0.25;  // of a new measurement
constexpr int kEnough = 4;        // measurements

}  // namespace

// The learned logarithm after its decay until `now`.
double Predictions::LogRatio(const Learned& learned, TimePoint now) {
  const std::chrono::duration<double> passed = now - learned.last;
  return learned.log_ratio * std::exp2(-passed / kHalfLife);
}

PredictedSeconds Predictions::Of(const Plan& plan) const {
  const auto of = [](double likely, double sure, double ahead) {
    return PredictedSeconds{likely, sure * likely, ahead * likely};
  };
  // Fast path: most requests are so short that the learned factor makes no difference.
  if (plan.seconds < kShort / kMost) return of(plan.seconds, kUnsure, kUnsure);
  const MutexLock lock(&mu_);
  const auto found = learned_.find(KindOf(plan));
  if (found == learned_.end()) return of(plan.seconds, kUnsure, kUnsure);
  const Learned& learned = found->second;
  const TimePoint now = clock_->Now();
  const double likely = plan.seconds * std::exp(LogRatio(learned, now));
  const bool is_known = learned.measured >= kEnough && now - learned.last <= kHalfLife;
  return is_known ? of(likely, kSure, kAhead) : of(likely, kUnsure, kUnsure);
}

void Predictions::Learn(const Plan& plan, double predicted, double measured) {
  if (predicted <= 0 || std::max(predicted, measured) < kShort) return;
  const double ratio = std::clamp(measured / predicted, kLeast, kMost);
  const MutexLock lock(&mu_);
  Learned& learned = learned_[KindOf(plan)];
  const TimePoint now = clock_->Now();
  const double before = LogRatio(learned, now);
  learned.log_ratio = before + kWeight * (std::log(ratio) - before);
  learned.measured += 1;
  learned.last = now;
}

}  // namespace attnd
