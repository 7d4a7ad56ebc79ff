#include "retry.h"

#include <algorithm>
#include <cmath>

namespace attnd::client {

std::chrono::nanoseconds BackoffAfter(int attempt, double random) {
  const double doubled = std::ldexp(static_cast<double>(kFirstBackoff.count()), attempt - 1);
  const double mean = std::min(doubled, static_cast<double>(kMostBackoff.count()));
  return std::chrono::nanoseconds(
      static_cast<int64_t>(mean * 1e6 * (1 + kJitter * (2 * random - 1))));
}

bool RetryBucket::Refused(int64_t message_bytes) {
  const int64_t cost = 1000 + message_bytes * 1000 / kBytesPerToken;
  thousandths_ = std::max<int64_t>(0, thousandths_ - cost);
  return thousandths_ > kFull / 2;
}

void RetryBucket::Succeeded() {
  constexpr auto kGain = static_cast<int64_t>(kTokensPerSuccess * 1000);
  thousandths_ = std::min(kFull, thousandths_ + kGain);
}

}  // namespace attnd::client
