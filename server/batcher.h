// The queue: buckets of requests that can run together, pulled by idle lanes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/core/mutex.h"
#include "server/task.h"

namespace attnd {

// Requests of equal bucket (plan->bucket) run as one ragged batch. Submit never blocks. A lane that
// is idle pulls the best bucket: highest priority, then earliest deadline, then oldest; within a
// bucket the same order. A batch closes at any of the caps. An idle lane never waits for company;
// what arrives while all lanes are busy gathers in its bucket meanwhile.
//
// Ageing: a request gains one priority for each full second it waits, so none starves. One with
// priority p is never chosen after one with priority p + d that was admitted more than d + 1
// seconds later, whatever their deadlines.
//
// Cost: Submit O(1); Pull O(waiting) over dense records (some microseconds for 1024); one short
// lock for all.
//
// Tasks whose deadline has passed or that were cancelled are not handed out: Pull answers them with
// DEADLINE_EXCEEDED or CANCELLED. Thread safe; `done` is always called without a lock held.
class Batcher {
 public:
  struct Options {
    int64_t max_queue_requests = 1024;
    int64_t max_batch_requests = 64;
    int64_t max_batch_bytes = int64_t{256} << 20;  // charged; a larger request runs alone
    double max_batch_seconds = 0.25;       // predicted, so that a long one does not hold up many
    std::function<void(Refusal)> refused;  // counts what was not taken or dropped; no lock is held
  };
  // Why a batch was closed; the label of attnd_dispatch_total. kFull: a cap closed it.
  enum class Reason : uint8_t { kIdle, kFull };

  struct Batch {
    std::vector<std::unique_ptr<Task>> tasks;  // empty: closed and drained, the lane may end
    Reason reason = Reason::kIdle;
  };

  Batcher(const Options& options, const Clock* clock);
  ~Batcher();  // REQUIRES: nothing is queued

  // Ownership moves only on OK. RESOURCE_EXHAUSTED: the queue is full. UNAVAILABLE: closed.
  absl::Status Submit(std::unique_ptr<Task>& task);

  // Blocks until there is work or Close was called and nothing is left.
  Batch Pull();
  // Pull without blocking: an empty batch when there is nothing (for tests on a fake clock).
  Batch TryPull();

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
