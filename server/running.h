// The batches that run, and what may start beside them.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "server/pace.h"
#include "server/task.h"
#include "server/turns.h"

namespace attnd {

// Predictions end when a batch has run for as long as it was predicted to; from then on it counts
// as taking as long again as it is late. Not thread safe.
class Running {
 public:
  explicit Running(int max_running) : max_running_(max_running) {
    // So that Begin needs no memory.
    runs_.reserve(static_cast<size_t>(max_running));
  }

  struct Run {
    uint64_t id = 0;
    TimePoint started;
    PredictedSeconds seconds;
    int level = 0;
    bool is_long = false;
    bool was_alone = true;            // all the time
    Turns::Client* client = nullptr;  // of the request that opened it
  };
  uint64_t Begin(Run run);  // its id
  Run End(uint64_t id, TimePoint now);

  // What may start now; see Batcher for the rules.
  struct Room {
    bool is_open = false;                                      // anything may
    bool is_first = true;                                      // nothing runs
    int level = std::numeric_limits<int>::min();               // the highest that runs
    double seconds = std::numeric_limits<double>::infinity();  // shorter than what goes on
    int long_places = 0;                                       // that are free
    int long_per_client = 1;                                   // that one client may have
  };
  Room RoomAt(TimePoint now, double soon) const;

  // Predicted seconds, as those behind it count them, until what would run before a request of this
  // level and length has ended.
  double SecondsBefore(TimePoint now, int level, double seconds) const;
  double SecondsLeft(TimePoint now) const;  // of all
  double pace() const { return pace_.value(); }
  bool empty() const { return runs_.empty(); }
  int level() const;  // the highest that runs

 private:
  const int max_running_;
  std::vector<Run> runs_;
  uint64_t next_id_ = 1;
  Pace pace_;
  TimePoint counted_until_;
};

}  // namespace attnd
