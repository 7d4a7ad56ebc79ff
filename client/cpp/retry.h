// When a refused request is sent again. For unary calls gRPC does it, with the same figures.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace attnd::client {

// Waiting times between attempts: kFirstBackoff, doubled each time up to kMostBackoff, each times a
// random factor of 1 +- kJitter.
constexpr std::chrono::milliseconds kFirstBackoff{100};
constexpr std::chrono::milliseconds kMostBackoff{2000};
constexpr double kJitter = 0.2;
// After attempt number `attempt`, 1 for the first. `random` is uniform in [0, 1).
std::chrono::nanoseconds BackoffAfter(int attempt, double random);

// A burst of refusals is sent again. Where refusals last, only one request is sent again for every
// ten that succeed: the load on a full server stays near what its clients need.
constexpr int kRetryTokens = 100;
constexpr double kTokensPerSuccess = 0.1;
// A large message that is refused on a stream was sent whole: it counts as one refusal more for
// each 16 MiB.
constexpr int64_t kBytesPerToken = 16 << 20;

// What the streams of a client may send again: a refusal takes a token, a success gives a tenth of
// one back, and nothing is sent again while half of them or less are left. One thread at a time.
class RetryBucket {
 public:
  // Whether the request may be sent again.
  bool Refused(int64_t message_bytes);
  void Succeeded();

 private:
  static constexpr int64_t kFull = kRetryTokens * 1000;

  int64_t thousandths_ = kFull;
};

}  // namespace attnd::client
