// The heartbeat of the polling thread.
#pragma once

#include <atomic>

#include "server/heartbeat.h"
#include "server/metrics.h"
#include "server/transport.h"

namespace attnd {

// Posts an event to the polling thread and measures how long it takes to run, which is how long any
// event waits. An idle polling thread handles two such events a second. Both arguments outlive it,
// and the transport has run its posts before it is destroyed.
class PollBeat {
 public:
  PollBeat(Transport* transport, Metrics* metrics) : transport_(transport), metrics_(metrics) {}

  // Posts an event, unless the last one has not run yet. Any thread, one at a time.
  void Ask();

  // Stuck while the event does not run.
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
