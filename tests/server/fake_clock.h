// A clock that stands still until a test moves it.
#pragma once

#include <atomic>
#include <chrono>

#include "server/task.h"

namespace attnd {

class FakeClock final : public Clock {
 public:
  TimePoint Now() const override {
    return TimePoint(std::chrono::nanoseconds(now_ns_.load(std::memory_order_relaxed)));
  }
  void Advance(std::chrono::nanoseconds time) { now_ns_ += time.count(); }

 private:
  std::atomic<int64_t> now_ns_ = 1'000'000'000'000;
};

}  // namespace attnd
