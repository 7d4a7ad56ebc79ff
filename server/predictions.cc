#include "server/predictions.h"

#include <algorithm>
#include <cmath>

namespace attnd {
namespace {

constexpr double kWeight = 0.25;  // of a new measurement
constexpr int kEnough = 4;        // measurements

}  // namespace

double Predictions::Likely(const Plan& plan) const {
  // Most requests are too short for their ratio to decide anything.
  if (plan.seconds < kShort / kMost) return plan.seconds;
  const MutexLock lock(&mu_);
  const auto found = learned_.find({plan.method, plan.direction});
  return found == learned_.end() ? plan.seconds : plan.seconds * std::exp(found->second.log_ratio);
}

double Predictions::Sure(const Plan& plan) const {
  const MutexLock lock(&mu_);
  const auto found = learned_.find({plan.method, plan.direction});
  return found == learned_.end() || found->second.measured < kEnough ? kUnsure : 0.8;
}

void Predictions::Learn(const Plan& plan, double predicted, double measured) {
  if (predicted <= 0 || std::max(predicted, measured) < kShort) return;
  const double ratio = std::clamp(measured / predicted, kLeast, kMost);
  const MutexLock lock(&mu_);
  Learned& learned = learned_[{plan.method, plan.direction}];
  learned.log_ratio += kWeight * (std::log(ratio) - learned.log_ratio);
  learned.measured += 1;
}

}  // namespace attnd
