// The waiting requests, and the order in which they run. batcher.h states the rules.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "server/running.h"
#include "server/task.h"
#include "server/turns.h"

namespace attnd {

// Not thread safe.
class Waiting {
 public:
  struct Options {
    int64_t max_batch_requests = 0;
    int64_t max_batch_bytes = 0;
    double max_batch_seconds = 0;
    TimePoint::duration patience{0};
    double soon_seconds = 0;
  };
  explicit Waiting(const Options& options) : options_(options) {}

  void Add(std::unique_ptr<Task> task, const PredictedSeconds& seconds);

  // A request that was removed without a result.
  struct Dropped {
    std::unique_ptr<Task> task;
    absl::Status status;
    Refusal refusal;
  };
  // Removes cancelled and expired requests, and those whose deadline would pass before they end.
  void TakeDropped(TimePoint now, std::vector<Dropped>* dropped);
  // Removes all, each with `status`.
  void TakeAll(const absl::Status& status, Refusal refusal, std::vector<Dropped>* dropped);
  // Removes the newest request of the client with the most, if that has at least two more than
  // `client`; the caller sets its status. Null: no such client.
  std::unique_ptr<Task> TakePlaceFor(const std::string& client);
  bool HasPlaceFor(const std::string& client) const;

  struct Batch {
    std::vector<std::unique_ptr<Task>> tasks;  // empty: nothing may start
    bool is_full = false;                      // a cap closed it
    int level = 0;
    PredictedSeconds seconds;
    Turns::Client* client = nullptr;  // of the request that opened it
  };
  // A batch of the best request that may start and others of its bucket. Counts it in the client's
  // turns.
  Batch TakeBest(const Running& running, TimePoint now);
  bool AnyMayStart(const Running& running, TimePoint now) const;

  // The seconds of the waiting requests that would run before `candidate` and keep it from
  // starting.
  struct Candidate {
    const std::string& client;
    int priority = 0;
    TimePoint deadline;
    PredictedSeconds seconds;  // 0: unknown
  };
  SecondsAhead Ahead(const Candidate& candidate, TimePoint now) const;

  Turns& turns() { return turns_; }
  int64_t requests() const { return requests_; }
  int64_t bytes() const { return bytes_; }
  double seconds() const { return seconds_; }
  TimePoint oldest(TimePoint now) const;

 private:
  // The values that decide the order, contiguous in memory: all are read for each batch.
  struct Entry {
    int priority = 0;
    TimePoint admitted, deadline;
    uint64_t sequence = 0;  // order of Add
    const std::atomic<bool>* cancelled = nullptr;
    PredictedSeconds seconds;
    Turns::Client* client = nullptr;
    double turn = 0;  // the client's virtual time at which it would start
    std::unique_ptr<Task> task;
  };
  using Bucket = std::vector<Entry>;
  struct Now;

  std::unique_ptr<Task> Remove(Entry& entry);
  Now NowOf(const Running& running, TimePoint now) const;
  bool MayStart(const Entry& entry, const Now& now) const;
  size_t Order(Bucket& bucket, const Now& now);
  size_t Fill(std::span<Entry> entries, const Now& now, Batch* batch);

  const Options options_;
  std::unordered_map<std::string, Bucket> buckets_;  // none is empty
  Turns turns_;
  int64_t requests_ = 0, bytes_ = 0;
  double seconds_ = 0;
  uint64_t next_sequence_ = 0;
};

}  // namespace attnd
