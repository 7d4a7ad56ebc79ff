#include "kernels/core/run_control.h"

#include <algorithm>

namespace attnd {
namespace {

constexpr double kLeastRemaining = 1.0 / 8;

int64_t Nanoseconds(std::chrono::nanoseconds time) { return time.count(); }

thread_local RunScope* current_scope = nullptr;

}  // namespace

RunControl::RunControl(int priority, double predicted_seconds, Now now)
    : priority_(priority), predicted_seconds_(std::max(predicted_seconds, 0.0)), now_(now) {}

void RunControl::StopAt(Clock::time_point when) {
  end_ns_.store(Nanoseconds(when.time_since_epoch()), std::memory_order_relaxed);
}

void RunControl::StopAfter(Clock::duration time) {
  own_end_ns_.store(
      Nanoseconds((now_() + time).time_since_epoch()) - waited_ns_.load(std::memory_order_relaxed),
      std::memory_order_relaxed);
}

bool RunControl::stopped() const {
  if (stopped_.load(std::memory_order_relaxed)) return true;
  const int64_t own_end = own_end_ns_.load(std::memory_order_relaxed);
  const int64_t end =
      std::min(end_ns_.load(std::memory_order_relaxed),
               own_end == kNever ? kNever : own_end + waited_ns_.load(std::memory_order_relaxed));
  if (end == kNever || Nanoseconds(now_().time_since_epoch()) < end) return false;
  stopped_.store(true, std::memory_order_relaxed);
  return true;
}

double RunControl::RemainingSeconds(int threads) const {
  const double left = predicted_seconds_ - spent_seconds() / threads;
  return std::max({left, -left, predicted_seconds_ * kLeastRemaining});
}

double RunControl::spent_seconds() const {
  return 1e-9 * static_cast<double>(spent_ns_.load(std::memory_order_relaxed));
}

void RunControl::AddSpent(std::chrono::nanoseconds time) {
  spent_ns_.fetch_add(time.count(), std::memory_order_relaxed);
}

void RunControl::AddWaited(std::chrono::nanoseconds time) {
  waited_ns_.fetch_add(time.count(), std::memory_order_relaxed);
}

double RunControl::waited_share() const {
  const double waited = 1e-9 * static_cast<double>(waited_ns_.load(std::memory_order_relaxed));
  if (waited < predicted_seconds_) return waited / predicted_seconds_;
  return waited > 0 ? 1 : 0;
}

RunScope::RunScope(const RunControl* run) : run_(run), outer_(current_scope) {
  current_scope = this;
}

RunScope::~RunScope() { current_scope = outer_; }

bool CheckPoint() { return current_scope != nullptr && current_scope->Check(); }

}  // namespace attnd
