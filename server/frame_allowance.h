// How many frames that carry nothing a client may send.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "kernels/core/mutex.h"

namespace attnd {

// Holds `capacity` tokens at most, begins full and gains `per_second`. Not thread safe.
class TokenBucket {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  TokenBucket(double capacity, double per_second) : capacity_(capacity), per_second_(per_second) {}

  void Refill(TimePoint now);
  // As many of `wanted` as there are; returns how many that is.
  double Take(double wanted);
  // All of them or none.
  bool TakeAll(double wanted);

 private:
  const double capacity_, per_second_;
  double tokens_ = capacity_;
  TimePoint refilled_at_ = TimePoint::min();
};

// Frames by what honest clients need of them.
struct FrameCounts {
  // SETTINGS, GOAWAY, PRIORITY, unknown ones, HEADERS that open no stream: some for a connection.
  // One of more than FrameWalk::kControlBytes counts several times.
  int64_t control = 0;
  // WINDOW_UPDATE, PING, RST_STREAM and DATA of less than FrameWalk::kSmallDataBytes: in proportion
  // to what is sent and received.
  int64_t small = 0;

  bool empty() const { return control == 0 && small == 0; }
};

// What all connections of a client share, so that neither more of them nor another one after each
// that is cut off brings more. Thread safe.
//
// Such a frame costs gRPC 0.1 to 1 us on the only polling thread: both rates together take about a
// hundredth of it.
class SharedFrames {
 public:
  static constexpr double kControl = 1000, kSmall = 10000;  // at once, and again each second

  // False, and takes what there is, if there are not so many left.
  bool Take(const FrameCounts& frames, TokenBucket::TimePoint now);

 private:
  Mutex mu_;
  TokenBucket control_ ATTND_GUARDED_BY(mu_){kControl, kControl};
  TokenBucket small_ ATTND_GUARDED_BY(mu_){kSmall, kSmall};
};

// What one connection may send. First comes what is its own: a little, so that an honest one goes
// on beside a flood from its address (less than what accepting a connection costs), and what it
// earns with streams and bytes; then what its client shares. Not thread safe.
class FrameAllowance {
 public:
  using TimePoint = TokenBucket::TimePoint;

  // At the least of a connection: it begins with SETTINGS, their acknowledgement and a window.
  static constexpr double kControl = 16, kControlPerSecond = 10;
  static constexpr double kSmall = 256, kSmallPerSecond = 100;
  // A call: its (small) message, its reset, updates of both windows.
  static constexpr int64_t kSmallOfStream = 4;
  // Libraries send an update of the windows of stream and connection for 16 KiB or more, gRPC for
  // Go with a ping: one for 4 KiB is enough. Small answers count as 8 KiB (Connection::Sends), so
  // that a stream of small requests earns what it needs.
  static constexpr int64_t kBytesOfSmall = 4 << 10;
  // 4 GiB, so that large replies, counted when they begin to leave, bring what they need; at once
  // they cost the polling thread some tenths of a second.
  static constexpr int64_t kMostEarned = 1 << 20;

  // `streams` were opened, `bytes` sent or received, since the last call.
  void Earn(int64_t streams, int64_t bytes);
  // Takes what was earned; returns how many more that needs.
  FrameCounts TakeEarned(FrameCounts frames);
  // Whether those are within the allowance.
  bool Take(FrameCounts frames, SharedFrames* shared, TimePoint now);

 private:
  TokenBucket control_{kControl, kControlPerSecond}, small_{kSmall, kSmallPerSecond};
  int64_t earned_ = 0;
  int64_t rest_bytes_ = 0;
};

}  // namespace attnd
