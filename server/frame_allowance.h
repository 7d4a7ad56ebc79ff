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
  // Takes `wanted` tokens or all that are left; returns how many it took.
  double Take(double wanted);
  // Takes all `wanted` tokens or none.
  bool TakeAll(double wanted);

 private:
  const double capacity_, per_second_;
  double tokens_ = capacity_;
  TimePoint refilled_at_ = TimePoint::min();
};

// Counts of frames, by how many honest clients need.
struct FrameCounts {
  // SETTINGS, GOAWAY, PRIORITY, unknown ones, HEADERS that open no stream: a few per connection.
  // One of more than FrameWalk::kControlBytes counts several times.
  int64_t control = 0;
  // WINDOW_UPDATE, PING, RST_STREAM and DATA of less than FrameWalk::kSmallDataBytes: in proportion
  // to the bytes sent and received.
  int64_t small = 0;

  bool empty() const { return control == 0 && small == 0; }
};

// The allowance that all connections of a client share, so that a client gets no more of it by
// opening more connections or by reconnecting after a cut-off. Thread safe.
//
// Such a frame takes gRPC 0.1 to 1 us on the only polling thread: both rates together use about one
// percent of it.
class SharedFrames {
 public:
  static constexpr double kControl = 1000, kSmall = 10000;  // at once, and again each second

  // False, and takes all that is left, if that is less than `frames`.
  bool Take(const FrameCounts& frames, TokenBucket::TimePoint now);

 private:
  Mutex mu_;
  TokenBucket control_ ATTND_GUARDED_BY(mu_){kControl, kControl};
  TokenBucket small_ ATTND_GUARDED_BY(mu_){kSmall, kSmall};
};

// What one connection may send. It first uses its own allowance: a small fixed one, so that an
// honest connection works beside a flood from its address (its frames cost less than accepting a
// connection), and what it earns with streams and bytes. Then it uses the allowance that its client
// shares. Not thread safe.
class FrameAllowance {
 public:
  using TimePoint = TokenBucket::TimePoint;

  // The minimum of a connection: it begins with SETTINGS, their acknowledgement and a window.
  static constexpr double kControl = 16, kControlPerSecond = 10;
  static constexpr double kSmall = 256, kSmallPerSecond = 100;
  // A call: its (small) message, its reset, updates of both windows.
  static constexpr int64_t kSmallOfStream = 4;
  // Libraries update the windows of stream and connection for every 16 KiB or more, and gRPC for Go
  // adds a ping: one frame for 4 KiB is enough. Small answers count as 8 KiB (Connection::Sends),
  // so that a stream of small requests earns what it needs.
  static constexpr int64_t kBytesOfSmall = 4 << 10;
  // Frames for 4 GiB, so that large replies, counted when they begin to leave, earn what they need.
  // All at once they cost the polling thread a few tenths of a second.
  static constexpr int64_t kMostEarned = 1 << 20;

  // `streams` were opened and `bytes` sent or received since the last Earn.
  void Earn(int64_t streams, int64_t bytes);
  // Takes earned frames; returns those that are not covered by them.
  FrameCounts TakeEarned(FrameCounts frames);
  // Takes `frames` from the fixed and then from the shared allowance; false if they do not suffice.
  bool Take(FrameCounts frames, SharedFrames* shared, TimePoint now);

 private:
  TokenBucket control_{kControl, kControlPerSecond}, small_{kSmall, kSmallPerSecond};
  int64_t earned_ = 0;
  int64_t rest_bytes_ = 0;
};

}  // namespace attnd
