// The batches that run, and what may start beside them.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "server/pace.h"
#include "server/places.h"
#include "server/task.h"
#include "server/turns.h"

namespace attnd {

// Predictions end when a batch has run for as long as it was predicted to; from then on it counts
// as taking as long again as it is late. Not thread safe.
class Running {
 public:
  // What takes at most this part of what is left of a run starts beside it.
  static constexpr double kShorter = 0.5;

  explicit Running(int max_running) : places_(max_running) {
    // So that Begin needs no memory.
    runs_.reserve(static_cast<size_t>(max_running));
  }

  struct Run {
    uint64_t id = 0;
    TimePoint started;
    PredictedSeconds seconds;
    int level = 0;
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
    const Places* places = nullptr;
    Places::Counts longer{};  // that run
  };
  Room RoomAt(TimePoint now, double soon) const;

  // Predicted seconds, as those behind it count them, of what such a request does not start beside,
  // and until it has a place.
  SecondsAhead Before(TimePoint now, const std::string& client, int level, double seconds) const;
  double SecondsToPlace(TimePoint now, const std::string& client, double seconds) const;
  double SecondsLeft(TimePoint now) const;  // of all
  double PaceAt(TimePoint now) const { return pace_.ValueAt(now); }
  bool empty() const { return runs_.empty(); }
  int level() const;  // the highest that runs

 private:
  const Places places_;
  std::vector<Run> runs_;
  Places::Counts longer_{};
  uint64_t next_id_ = 1;
  Pace pace_;
  // Of what ran since nothing did, and when that began.
  double group_seconds_ = 0;
  TimePoint group_began_;
};

}  // namespace attnd
