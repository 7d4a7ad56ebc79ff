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
// batches and tell when they end; several run at once.
//
// Order. The best request opens the next batch, and others of its bucket join in the same order:
//   1. level: its priority. Who has waited kPatience counts as much as the highest priority that
//      waits or runs, so that no flood keeps others waiting;
//   2. the client's turn (turns.h): who had the least predicted seconds;
//   3. priority, one more for each full second it waits; then the earliest deadline; then age.
// A batch closes at any of the caps, and before its predicted seconds exceed the time that the
// deadline of one of its requests leaves. An idle lane never waits for company.
//
// Beside each other. While nothing runs, the best request starts. While batches run, company
// gathers in the buckets, unless each of them goes on for longer than kSoon and for at least twice
// as long as the candidate itself is predicted to take: then it starts beside them, since what runs
// shares the machine by level and shortest remaining time. (Of two that are about as long the one
// that began would only end later.) A candidate of a higher level need not be shorter; one of a
// lower level waits. Who has waited kPatience need not be shorter if nothing of its client runs
// that takes above 50 ms. At most max_running batches run, the longer the fewer (places.h).
//
// What cannot meet its deadline, by prediction, is refused: when it is submitted, with what really
// keeps it from starting (what it does not start beside, for no longer than kPatience where that
// helps it, and the time until it has a place) at the pace of the machine (pace.h), and when its
// turn comes.
//
// Places are shared: once the queue is full, a client with fewer requests in it takes the place of
// the newest request of the client with the most.
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
    double max_batch_seconds = 0.02;  // predicted; company makes all of a batch wait for its last
    int max_running = 6;              // batches at once
    const Predictions* predictions = nullptr;  // outlives the batcher; null: what plans say holds
    std::function<void(Refusal)> refused;  // counts what was not taken or dropped; no lock is held
  };
  // Why a batch was closed; the label of attnd_dispatch_total. kFull: a cap closed it.
  enum class Reason : uint8_t { kIdle, kFull };

  struct Batch {
    std::vector<std::unique_ptr<Task>> tasks;  // empty: closed and drained, the lane may end
    Reason reason = Reason::kIdle;
    uint64_t run = 0;    // for Ended
    int level = 0;       // priority among what runs
    double seconds = 0;  // predicted
  };

  Batcher(const Options& options, const Clock* clock);
  ~Batcher();  // REQUIRES: nothing is queued

  // Whether a request of this client, with this deadline and priority, would be taken, as far as
  // that can be told before it is read: without a plan it may be the shortest of all. Counts a
  // refusal. UNAVAILABLE: closed. RESOURCE_EXHAUSTED: no place. DEADLINE_EXCEEDED: it would not be
  // done in time.
  absl::Status Admit(const std::string& client, int priority, TimePoint deadline,
                     const Plan* plan = nullptr);
  // The same for several queues, while it is not known which of them the request is for: OK if one
  // of them would take it, else what the first one answers. Counts one refusal.
  // REQUIRES: `batchers` is not empty.
  static absl::Status AdmitToAny(std::span<Batcher* const> batchers, const std::string& client,
                                 int priority, TimePoint deadline);

  // Ownership moves only on OK. The same errors as Admit, counted.
  absl::Status Submit(std::unique_ptr<Task>& task);

  // Blocks until there is work that may start, or Close was called and nothing is left.
  Batch Pull();
  // Pull without blocking: an empty batch when nothing may start (for tests on a fake clock).
  Batch TryPull();
  // A batch that was pulled is computed: its place is free. Whether it had the machine alone.
  // REQUIRES: the caller pulls soon. Until then no other lane is woken for what it will find.
  bool Ended(uint64_t run);

  // Starts batches beside those that run once these go on for longer than predicted or somebody has
  // waited long enough. Blocks until Close and until the queue is empty; one thread of the process
  // has nothing else to do. At rest it costs nothing.
  void Watch();

  // Answers and removes what has expired or was cancelled. For who learns of a cancellation: a lane
  // that is busy would find it only at its next Pull.
  void Sweep();

  // No more Submit; queued work is still handed out.
  void Close();

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
