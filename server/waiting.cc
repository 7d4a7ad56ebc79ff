#include "server/waiting.h"

#include <algorithm>
#include <new>
#include <tuple>
#include <utility>

namespace attnd {
namespace {

// The smallest runs first: level, turn, aged priority, deadline, order of Add.
using Rank = std::tuple<int, double, int64_t, TimePoint, uint64_t>;

int64_t AgedPriority(int priority, TimePoint admitted, TimePoint now) {
  return priority + std::chrono::duration_cast<std::chrono::seconds>(now - admitted).count();
}

}  // namespace

// The state against which all requests are compared at one moment.
struct Waiting::Now {
  TimePoint time;
  TimePoint::duration patience;
  Running::Room room;
  int top = 0;  // the highest priority that waits or runs

  double Longest(const Turns::Client& client) const {
    return room.places->Longest(room.longer, client.longer);
  }
  bool IsOverdue(const Entry& entry) const { return time - entry.admitted >= patience; }
  int Level(const Entry& entry) const {
    return IsOverdue(entry) ? std::max(entry.priority, top) : entry.priority;
  }
  Rank RankOf(const Entry& entry, double turn) const {
    return {-Level(entry), turn, -AgedPriority(entry.priority, entry.admitted, time),
            entry.deadline, entry.sequence};
  }
};

void Waiting::Add(std::unique_ptr<Task> task, const PredictedSeconds& seconds) {
  // What may throw for lack of memory comes first. The next TakeDropped removes a bucket that stays
  // empty.
  Bucket& bucket = buckets_[task->plan->bucket];
  bucket.emplace_back();
  Turns::Client* client = nullptr;
  try {
    client = turns_.Enter(task->client);
  } catch (...) {
    bucket.pop_back();
    throw;
  }
  bucket.back() = {.priority = task->priority,
                   .admitted = task->admitted,
                   .deadline = task->deadline,
                   .sequence = next_sequence_++,
                   .cancelled = task->cancelled.get(),
                   .seconds = seconds,
                   .client = client};
  requests_ += 1;
  bytes_ += task->charged_bytes;
  seconds_ += seconds.likely;
  bucket.back().task = std::move(task);
}

// The caller erases the entry.
std::unique_ptr<Task> Waiting::Remove(Entry& entry) {
  requests_ -= 1;
  bytes_ -= entry.task->charged_bytes;
  // Reset whenever the queue is empty, so that rounding errors do not accumulate.
  seconds_ = requests_ == 0 ? 0 : seconds_ - entry.seconds.likely;
  turns_.Leave(entry.client);
  return std::move(entry.task);
}

void Waiting::TakeDropped(TimePoint now, std::vector<Dropped>* dropped) {
  const auto is_dead = [&](Entry& entry) {
    const bool expires = entry.deadline != TimePoint::max();
    const double left = expires ? Seconds(entry.deadline - now) : 0;
    const bool is_late = expires && (left <= 0 || entry.seconds.sure > left);
    if (!is_late && !entry.cancelled->load(std::memory_order_relaxed)) return false;
    try {
      absl::Status status = CheckAlive(*entry.task, now);
      if (status.ok()) status = Hopeless(entry.seconds.likely, /*ahead=*/0, left);
      const Refusal refusal = RefusalOf(status);
      dropped->push_back({nullptr, std::move(status), refusal});
    } catch (const std::bad_alloc&) {
      return false;  // the next TakeDropped tries again
    }
    dropped->back().task = Remove(entry);
    return true;
  };
  for (auto it = buckets_.begin(); it != buckets_.end();) {
    std::erase_if(it->second, is_dead);
    it = it->second.empty() ? buckets_.erase(it) : std::next(it);
  }
}

void Waiting::TakeAll(const absl::Status& status, Refusal refusal, std::vector<Dropped>* dropped) {
  dropped->reserve(dropped->size() + static_cast<size_t>(requests_));
  for (auto& [name, bucket] : buckets_) {
    for (Entry& entry : bucket) dropped->push_back({Remove(entry), status, refusal});
  }
  buckets_.clear();
}

bool Waiting::HasPlaceFor(const std::string& client) const {
  const Turns::Client* const largest = turns_.Largest();
  return largest != nullptr && largest->waiting > turns_.Waiting(client) + 1;
}

std::unique_ptr<Task> Waiting::TakePlaceFor(const std::string& client) {
  if (!HasPlaceFor(client)) return nullptr;
  const Turns::Client* const largest = turns_.Largest();
  auto in = buckets_.end();
  size_t newest = 0;
  for (auto it = buckets_.begin(); it != buckets_.end(); ++it) {
    for (size_t i = 0; i < it->second.size(); ++i) {
      if (it->second[i].client != largest) continue;
      if (in != buckets_.end() && it->second[i].sequence < in->second[newest].sequence) continue;
      in = it;
      newest = i;
    }
  }
  std::unique_ptr<Task> task = Remove(in->second[newest]);
  in->second.erase(in->second.begin() + static_cast<std::ptrdiff_t>(newest));
  if (in->second.empty()) buckets_.erase(in);
  return task;
}

// `top` is computed only if a request may start.
Waiting::Now Waiting::NowOf(const Running& running, TimePoint now) const {
  Now all{.time = now,
          .patience = options_.patience,
          .room = running.RoomAt(now, options_.soon_seconds),
          .top = running.level()};
  if (!all.room.is_open) return all;
  for (const auto& [name, bucket] : buckets_) {
    for (const Entry& entry : bucket) all.top = std::max(all.top, entry.priority);
  }
  return all;
}

bool Waiting::MayStart(const Entry& entry, const Now& now) const {
  if (entry.seconds.likely > now.Longest(*entry.client)) return false;
  if (now.room.is_first) return true;
  const int level = now.Level(entry);
  if (level != now.room.level) return level > now.room.level;
  if (entry.seconds.likely <= Running::kShorter * now.room.seconds) return true;
  return now.IsOverdue(entry) && entry.client->longer[Places::kLong] == 0;
}

bool Waiting::AnyMayStart(const Running& running, TimePoint time) const {
  const Now now = NowOf(running, time);
  if (!now.room.is_open) return false;
  for (const auto& [name, bucket] : buckets_) {
    for (const Entry& entry : bucket) {
      if (MayStart(entry, now)) return true;
    }
  }
  return false;
}

Waiting::Batch Waiting::TakeBest(const Running& running, TimePoint time) {
  Batch batch;
  const Now now = NowOf(running, time);
  if (!now.room.is_open) return batch;
  auto best = buckets_.end();
  const Entry* opens = nullptr;
  Rank least;
  for (auto it = buckets_.begin(); it != buckets_.end(); ++it) {
    for (const Entry& entry : it->second) {
      if (!MayStart(entry, now)) continue;
      const Rank rank = now.RankOf(entry, entry.client->served);
      if (opens != nullptr && least < rank) continue;
      best = it;
      opens = &entry;
      least = rank;
    }
  }
  if (opens == nullptr) return batch;
  // A longer batch at a raised level would delay the requests of that level for all of its time.
  const bool is_raised = opens->seconds.likely <= Places::kLimits[Places::kRaised];
  batch.level = is_raised ? now.Level(*opens) : opens->priority;
  batch.client = opens->client;
  Bucket& bucket = best->second;
  const size_t startable = Order(bucket, now);
  // Nothing allocates after this.
  batch.tasks.reserve(std::min(startable, static_cast<size_t>(options_.max_batch_requests)));
  // Before the last request of the client leaves the queue, so that its record stays.
  turns_.Open(batch.client);
  const size_t taken = Fill(std::span(bucket).first(startable), now, &batch);
  turns_.Begin(batch.client, batch.seconds.likely);
  batch.is_full = taken < startable || taken >= static_cast<size_t>(options_.max_batch_requests);
  bucket.erase(bucket.begin(), bucket.begin() + static_cast<std::ptrdiff_t>(taken));
  if (bucket.empty()) buckets_.erase(best);
  return batch;
}

// Moves the requests that may start to the front, in the order in which they would start one after
// the other; returns their number.
size_t Waiting::Order(Bucket& bucket, const Now& now) {
  const auto end = std::partition(bucket.begin(), bucket.end(),
                                  [&](const Entry& entry) { return MayStart(entry, now); });
  const auto sort = [&] {
    std::sort(bucket.begin(), end, [&](const Entry& a, const Entry& b) {
      return now.RankOf(a, a.turn) < now.RankOf(b, b.turn);
    });
  };
  for (Entry& entry : bucket) entry.turn = 0;
  sort();
  if (turns_.size() > 1) {
    std::unordered_map<const Turns::Client*, double> turn;
    for (auto it = bucket.begin(); it != end; ++it) {
      double& next = turn.try_emplace(it->client, it->client->served).first->second;
      it->turn = next;
      next += it->seconds.likely;
    }
    sort();
  }
  return static_cast<size_t>(end - bucket.begin());
}

// Takes requests from the front as far as the caps allow, at least one; returns their number.
size_t Waiting::Fill(std::span<Entry> entries, const Now& now, Batch* batch) {
  double most = std::min(options_.max_batch_seconds, now.Longest(*batch->client));
  if (!now.room.is_first) most = std::min(most, Running::kShorter * now.room.seconds);
  TimePoint deadline = TimePoint::max();
  int64_t bytes = 0;
  size_t taken = 0;
  for (Entry& entry : entries) {
    const int64_t charged = entry.task->charged_bytes;
    const double likely = batch->seconds.likely + entry.seconds.likely;
    deadline = std::min(deadline, entry.deadline);
    const bool is_late = deadline != TimePoint::max() && likely > Seconds(deadline - now.time);
    const bool is_full = charged > options_.max_batch_bytes - bytes || likely > most;
    if (taken > 0 && (is_full || is_late)) break;
    bytes += charged;
    batch->seconds += entry.seconds;
    turns_.Take(entry.client, entry.seconds.likely);
    batch->tasks.push_back(Remove(entry));
    if (++taken >= static_cast<size_t>(options_.max_batch_requests)) break;
  }
  return taken;
}

SecondsAhead Waiting::Ahead(const Candidate& candidate, TimePoint now) const {
  SecondsAhead ahead;
  for (const auto& [name, bucket] : buckets_) {
    for (const Entry& entry : bucket) {
      if (candidate.seconds.likely <= Running::kShorter * entry.seconds.likely) continue;
      if (entry.client->name != candidate.client) {
        ahead.patient += entry.priority > candidate.priority ? entry.seconds.ahead : 0;
        continue;
      }
      const int64_t aged = AgedPriority(entry.priority, entry.admitted, now);
      const bool is_before = aged > candidate.priority ||
                             (aged == candidate.priority && entry.deadline <= candidate.deadline);
      ahead.own += is_before ? entry.seconds.ahead : 0;
    }
  }
  return ahead;
}

TimePoint Waiting::oldest(TimePoint now) const {
  TimePoint oldest = now;
  for (const auto& [name, bucket] : buckets_) {
    for (const Entry& entry : bucket) oldest = std::min(oldest, entry.admitted);
  }
  return oldest;
}

}  // namespace attnd
