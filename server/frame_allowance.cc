#include "server/frame_allowance.h"

#include <cmath>

namespace attnd {
namespace {

// Takes up to `count` tokens from `bucket` and subtracts them from `count`.
void TakeFrom(TokenBucket* bucket, int64_t* count) {
  *count -= static_cast<int64_t>(bucket->Take(static_cast<double>(*count)));
}

}  // namespace

void TokenBucket::Refill(TimePoint now) {
  if (refilled_at_ != TimePoint::min()) {
    const std::chrono::duration<double> elapsed = now - refilled_at_;
    tokens_ = std::min(tokens_ + elapsed.count() * per_second_, capacity_);
  }
  refilled_at_ = now;
}

double TokenBucket::Take(double wanted) {
  const double taken = std::min(wanted, std::floor(tokens_));
  tokens_ -= taken;
  return taken;
}

bool TokenBucket::TakeAll(double wanted) { return wanted <= tokens_ && Take(wanted) == wanted; }

bool SharedFrames::Take(const FrameCounts& frames, TokenBucket::TimePoint now) {
  FrameCounts left = frames;
  const MutexLock lock(&mu_);
  control_.Refill(now);
  small_.Refill(now);
  TakeFrom(&control_, &left.control);
  TakeFrom(&small_, &left.small);
  return left.empty();
}

void FrameAllowance::Earn(int64_t streams, int64_t bytes) {
  rest_bytes_ += bytes;
  earned_ += streams * kSmallOfStream + rest_bytes_ / kBytesOfSmall;
  rest_bytes_ %= kBytesOfSmall;
  earned_ = std::min(earned_, kMostEarned);
}

FrameCounts FrameAllowance::TakeEarned(FrameCounts frames) {
  const int64_t earned = std::min(frames.small, earned_);
  earned_ -= earned;
  frames.small -= earned;
  return frames;
}

bool FrameAllowance::Take(FrameCounts frames, SharedFrames* shared, TimePoint now) {
  control_.Refill(now);
  small_.Refill(now);
  TakeFrom(&control_, &frames.control);
  TakeFrom(&small_, &frames.small);
  return frames.empty() || shared->Take(frames, now);
}

}  // namespace attnd
