// The heartbeat of the polling thread.
#pragma once

#include <atomic>

#include "server/heartbeat.h"
#include "server/metrics.h"
#include "server/transport.h"

namespace attnd {

// Asks the polling thread to run something now and then, and measures how long it takes until it
// does: what any event waits. At rest it costs that thread two events a second. Both outlive it,
// and the transport runs what was posted before this goes.
class PollBeat {
 public:
  PollBeat(Transport* transport, Metrics* metrics) : transport_(transport), metrics_(metrics) {}

  // Any thread, one at a time. Nothing happens while it has not answered the last time.
  void Ask();

  // Stuck: it does not answer.
  Watchdog::Part part();

 private:
  void Answer();

  Transport* const transport_;
  Metrics* const metrics_;
  TimePoint asked_at_;  // written before is_asked_, read after it
  std::atomic<bool> is_asked_{false};
  std::atomic<int64_t> answers_{0};
};

}  // namespace attnd
