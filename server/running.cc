#include "server/running.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace attnd {
namespace {

double SecondsLeftOf(const Running::Run& run, TimePoint now) {
  return std::abs(run.seconds.likely - Seconds(now - run.started));
}

// The seconds left of a run, as requests behind it count them.
double AheadOf(const Running::Run& run, double left) {
  return run.seconds.likely > 0 ? left * run.seconds.ahead / run.seconds.likely : left;
}

}  // namespace

uint64_t Running::Begin(Run run) {
  if (runs_.empty()) {
    group_seconds_ = 0;
    group_began_ = run.started;
  }
  run.id = next_id_++;
  run.was_alone = runs_.empty();
  for (Run& other : runs_) other.was_alone = false;
  runs_.push_back(run);
  Places::Add(run.seconds.likely, 1, &longer_);
  return run.id;
}

Running::Run Running::End(uint64_t id, TimePoint now) {
  const auto found =
      std::find_if(runs_.begin(), runs_.end(), [id](const Run& run) { return run.id == id; });
  assert(found != runs_.end());
  const Run run = *found;
  runs_.erase(found);
  Places::Add(run.seconds.likely, -1, &longer_);
  group_seconds_ += run.seconds.likely;
  if (runs_.empty()) pace_.Count(group_seconds_, Seconds(now - group_began_), now);
  return run;
}

Running::Room Running::RoomAt(TimePoint now, double soon) const {
  Room room;
  room.places = &places_;
  room.longer = longer_;
  room.is_first = runs_.empty();
  room.level = level();
  for (const Run& run : runs_) room.seconds = std::min(room.seconds, SecondsLeftOf(run, now));
  room.is_open =
      runs_.empty() || (static_cast<int>(runs_.size()) < places_.all() && room.seconds > soon);
  return room;
}

int Running::level() const {
  int level = std::numeric_limits<int>::min();
  for (const Run& run : runs_) level = std::max(level, run.level);
  return level;
}

SecondsAhead Running::Before(TimePoint now, const std::string& client, int level,
                             double seconds) const {
  const bool waits_for_ends = std::any_of(runs_.begin(), runs_.end(), [&](const Run& run) {
    return run.seconds.likely > Places::kLimits[Places::kLong] && run.client != nullptr &&
           run.client->name == client;
  });
  SecondsAhead ahead;
  for (const Run& run : runs_) {
    const double left = SecondsLeftOf(run, now);
    if (run.level < level || (run.level == level && seconds <= kShorter * left)) continue;
    // After kPatience the request may start beside this run, and ends first if it is shorter.
    const bool is_patient = run.level > level || (seconds < left && !waits_for_ends);
    (is_patient ? ahead.patient : ahead.own) += AheadOf(run, left);
  }
  return ahead;
}

double Running::SecondsToPlace(TimePoint now, const std::string& client, double seconds) const {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  double wait = 0;
  // The last step is for the places of all lengths together.
  for (size_t i = 0; i <= Places::kLimits.size(); ++i) {
    const bool is_all = i == Places::kLimits.size();
    const double limit = is_all ? -1 : Places::kLimits[i];
    if (seconds <= limit) continue;
    int count = 0, count_of_client = 0;
    double first = kNone, first_of_client = kNone;
    for (const Run& run : runs_) {
      if (run.seconds.likely <= limit) continue;
      const double left = AheadOf(run, SecondsLeftOf(run, now));
      ++count;
      first = std::min(first, left);
      if (run.client == nullptr || run.client->name != client) continue;
      ++count_of_client;
      first_of_client = std::min(first_of_client, left);
    }
    if (count >= (is_all ? places_.all() : places_.Longer(i))) {
      wait = std::max(wait, first);
    } else if (!is_all && count_of_client >= places_.LongerOfClient(i)) {
      wait = std::max(wait, first_of_client);
    }
  }
  return wait;
}

double Running::SecondsLeft(TimePoint now) const {
  double left = 0;
  for (const Run& run : runs_) left += SecondsLeftOf(run, now);
  return left;
}

}  // namespace attnd
