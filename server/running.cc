#include "server/running.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

namespace attnd {
namespace {

double SecondsLeftOf(const Running::Run& run, TimePoint now) {
  return std::abs(run.seconds.likely - Seconds(now - run.started));
}

// What those behind it count.
double AheadOf(const Running::Run& run, double left) {
  return run.seconds.likely > 0 ? left * run.seconds.ahead / run.seconds.likely : left;
}

}  // namespace

uint64_t Running::Begin(Run run) {
  if (runs_.empty()) counted_until_ = run.started;
  run.id = next_id_++;
  run.was_alone = runs_.empty();
  for (Run& other : runs_) other.was_alone = false;
  runs_.push_back(run);
  return run.id;
}

Running::Run Running::End(uint64_t id, TimePoint now) {
  const auto found =
      std::find_if(runs_.begin(), runs_.end(), [id](const Run& run) { return run.id == id; });
  assert(found != runs_.end());
  const Run run = *found;
  runs_.erase(found);
  pace_.Count(run.seconds.likely, Seconds(now - std::exchange(counted_until_, now)));
  return run;
}

Running::Room Running::RoomAt(TimePoint now, double soon) const {
  Room room;
  // Without a second place all are for everything.
  room.long_places = max_running_ > 1 ? max_running_ - 1 : 1;
  room.long_per_client = std::max(1, room.long_places - 1);
  room.is_first = runs_.empty();
  room.level = level();
  for (const Run& run : runs_) {
    room.seconds = std::min(room.seconds, SecondsLeftOf(run, now));
    room.long_places -= run.is_long ? 1 : 0;
  }
  room.is_open =
      runs_.empty() || (static_cast<int>(runs_.size()) < max_running_ && room.seconds > soon);
  return room;
}

int Running::level() const {
  int level = std::numeric_limits<int>::min();
  for (const Run& run : runs_) level = std::max(level, run.level);
  return level;
}

double Running::SecondsBefore(TimePoint now, int level, double seconds) const {
  double before = 0, least = std::numeric_limits<double>::infinity();
  for (const Run& run : runs_) {
    const double left = SecondsLeftOf(run, now);
    least = std::min(least, AheadOf(run, left));
    if (run.level > level || (run.level == level && left < seconds)) before += AheadOf(run, left);
  }
  // Without a place even the most urgent waits until one is free.
  const bool is_full = static_cast<int>(runs_.size()) >= max_running_;
  return is_full ? std::max(before, least) : before;
}

double Running::SecondsLeft(TimePoint now) const {
  double left = 0;
  for (const Run& run : runs_) left += SecondsLeftOf(run, now);
  return left;
}

}  // namespace attnd
