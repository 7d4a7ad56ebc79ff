// The queue: buckets of requests that can run together, and which of them runs when.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/core/mutex.h"
#include "server/predictions.h"
#include "server/task.h"

namespace attnd {

// Requests of equal bucket (plan->bucket) run as one ragged batch. Submit never blocks. Lanes pull
// batches and report their ends; several run at once.
//
// Order. The best request opens the next batch, and others of its bucket join in the same order:
//   1. level: its priority. A request that has waited kPatience gets the highest level that waits
//      or runs, so that a flood of urgent requests cannot starve it;
//   2. the client's turn (turns.h): the client that had the fewest predicted seconds comes first;
//   3. priority, raised by one for each full second of waiting; then the earliest deadline; then
//      age.
// A batch closes at any of the caps, and before its predicted seconds exceed the time that the
// deadline of one of its requests leaves. An idle lane never waits for more requests.
//
// Concurrent batches. While nothing runs, the best request starts. While batches run, a candidate
// waits and gathers others in its bucket, unless each running batch still needs longer than kSoon
// and at least twice as long as the candidate is predicted to take: then it starts beside them,
// since running batches share the machine by level and shortest remaining time. (If both took about
// as long, starting the second would only delay the first.) A candidate of a higher level need not
// be shorter; one of a lower level waits. A request that has waited kPatience need not be shorter
// if its client runs nothing that takes more than 50 ms. At most max_running batches run, and fewer
// of the longer kinds (places.h).
//
// A request that is predicted to miss its deadline is refused: when it is submitted, and again when
// its turn comes. The prediction at submission adds up what delays the request (batches that it
// cannot start beside, for at most kPatience where waiting that long lets it start, and the time
// until a place is free) at the pace of the machine (pace.h).
//
// Once the queue is full, a request of a client with fewer requests in it takes the place of the
// newest request of the client with the most.
//
// Cost: Submit O(1) (with a deadline that a queue ahead may exceed, or a full queue, O(waiting));
// Pull O(waiting) over dense records (some microseconds for 1024); one short lock for all.
//
// Tasks whose deadline has passed or that were cancelled are not handed out: Pull answers them with
// DEADLINE_EXCEEDED or CANCELLED. Thread safe; `done` is always called without a lock held.
class Batcher {
 public:
  static constexpr std::chrono::seconds kPatience{2};
  static constexpr double kSoon = 0.005;

  struct Options {
    int64_t max_queue_requests = 1024;
    int64_t max_batch_requests = 64;
    int64_t max_batch_bytes = int64_t{256} << 20;  // charged; a larger request runs alone
    double max_batch_seconds = 0.02;  // predicted; every request of a batch waits for the longest
    int max_running = 6;              // batches at once
    const Predictions* predictions = nullptr;  // outlives the batcher; null: as planned
    std::function<void(Refusal)> refused;  // called for each refused or dropped one, without a lock
  };
  // Why a batch was closed; the label of attnd_dispatch_total. kFull: a cap closed it.
  enum class Reason : uint8_t { kIdle, kFull };

  struct Batch {
    std::vector<std::unique_ptr<Task>> tasks;  // empty: closed and drained, the lane may end
    Reason reason = Reason::kIdle;
    uint64_t run = 0;    // for Ended
    int level = 0;       // priority among running batches
    double seconds = 0;  // predicted
  };

  Batcher(const Options& options, const Clock* clock);
  ~Batcher();  // REQUIRES: nothing is queued

  // Whether Submit would accept a request of this client, with this deadline and priority, as far
  // as can be known before it is read: without a plan it may be the shortest of all. Counts a
  // refusal. UNAVAILABLE: closed or failed. RESOURCE_EXHAUSTED: no place. DEADLINE_EXCEEDED: it
  // would not be done in time.
  absl::Status Admit(const std::string& client, int priority, TimePoint deadline,
                     const Plan* plan = nullptr);
  // Admit for a request whose queue is not known yet: OK if one of `batchers` would accept it, else
  // the error of the first. Counts one refusal.
  // REQUIRES: `batchers` is not empty.
  static absl::Status AdmitToAny(std::span<Batcher* const> batchers, const std::string& client,
                                 int priority, TimePoint deadline);

  // Seconds until a request of this client would be done if it were submitted now, by prediction;
  // infinite if it has no place.
  double SecondsUntilDone(const std::string& client, int priority, const Plan& plan) const;

  // Ownership moves only on OK. The same errors as Admit, counted.
  absl::Status Submit(std::unique_ptr<Task>& task);

  // Blocks until there is work that may start, or Close was called and nothing is left.
  Batch Pull();
  // Pull without blocking: an empty batch when nothing may start (for tests on a fake clock).
  Batch TryPull();
  // A batch that was pulled is computed: its place is free. Returns whether it ran alone all the
  // time. REQUIRES: the caller pulls soon; until then no other lane is woken for waiting requests.
  bool Ended(uint64_t run);

  // Starts batches beside running ones once these take longer than predicted or a request has
  // waited long enough. Blocks until Close and until the queue is empty, on a thread of its own
  // that sleeps while nothing waits.
  void Watch();

  // Answers and removes expired and cancelled requests. To be called after a cancellation: a busy
  // lane would find it only at its next Pull.
  void Sweep();

  // No more Submit; queued work is still handed out.
  void Close();

  // The device has failed: refuses every request with `status`, those that wait, too. The first
  // call counts.
  void Fail(const absl::Status& status);

  struct Depth {
    int64_t requests = 0, bytes = 0;  // waiting
    double oldest_seconds = 0;
  };
  Depth depth() const;      // O(waiting)
  int64_t waiting() const;  // requests; O(1)

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace attnd
