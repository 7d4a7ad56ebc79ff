// The running batches, and what may start beside them.
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

// A batch that has run for longer than predicted is assumed to take as much longer as it is late by
// now. Not thread safe.
class Running {
 public:
  // A batch starts beside a run if it takes at most this part of the seconds left of it.
  static constexpr double kShorter = 0.5;

  explicit Running(int max_running) : places_(max_running) {
    // So that Begin never allocates.
    runs_.reserve(static_cast<size_t>(max_running));
  }

  struct Run {
    uint64_t id = 0;
    TimePoint started;
    PredictedSeconds seconds;
    int level = 0;
    bool was_alone = true;            // during the whole run
    Turns::Client* client = nullptr;  // that opened it
  };
  uint64_t Begin(Run run);  // its id
  Run End(uint64_t id, TimePoint now);

  // What may start at a moment; see Batcher for the rules.
  struct Room {
    bool is_open = false;                                      // a batch may start at all
    bool is_first = true;                                      // nothing runs
    int level = std::numeric_limits<int>::min();               // the highest that runs
    double seconds = std::numeric_limits<double>::infinity();  // least seconds left of a run
    const Places* places = nullptr;
    Places::Counts longer{};  // of the running batches
  };
  Room RoomAt(TimePoint now, double soon) const;

  // For a request of `client`, `level` and `seconds`: the `ahead` seconds of the runs that it
  // cannot start beside, and the seconds until it has a place.
  SecondsAhead Before(TimePoint now, const std::string& client, int level, double seconds) const;
  double SecondsToPlace(TimePoint now, const std::string& client, double seconds) const;
  double SecondsLeft(TimePoint now) const;  // of all runs
  double PaceAt(TimePoint now) const { return pace_.ValueAt(now); }
  bool empty() const { return runs_.empty(); }
  int level() const;  // the highest that runs

 private:
  const Places places_;
  std::vector<Run> runs_;
  Places::Counts longer_{};
  uint64_t next_id_ = 1;
  Pace pace_;
  // Predicted seconds of the runs since nothing last ran, and when that ended.
  double group_seconds_ = 0;
  TimePoint group_began_;
};

}  // namespace attnd
