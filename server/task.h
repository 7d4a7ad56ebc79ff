// One request on its way through the server, from validation to the answer.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/engine/engine.h"
#include "proto/wire/codec.h"

namespace attnd {

// The clock is an argument, so that tests can control it.
using TimePoint = std::chrono::steady_clock::time_point;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
};

inline double Seconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

// Predicted seconds of a request or batch, alone on the machine.
struct PredictedSeconds {
  double likely = 0;
  double sure = 0;   // the least: decides whether it can meet its own deadline
  double ahead = 0;  // a cautious value, for the deadlines of requests behind it

  void operator+=(const PredictedSeconds& other) {
    likely += other.likely;
    sure += other.sure;
    ahead += other.ahead;
  }
};

// What delays a request: the sum of the `ahead` seconds of others.
struct SecondsAhead {
  double patient = 0;  // delays that end once it has waited for kPatience
  double own = 0;      // delays that last longer: of its own level or client
};

// Why a request got no result; the label of attnd_refused_total.
enum class Refusal : uint8_t {
  kQueueFull,
  kBytes,
  kDeadline,
  kCancelled,
  kDraining,
  kInvalid,
  kSeconds,  // above --max-request-seconds, predicted or measured
  kDevice,   // its device has failed
};

struct Phases {
  double queue_seconds = 0, gather_seconds = 0, compute_seconds = 0;
  int64_t batch_requests = 0, batch_tokens = 0, peak_workspace_bytes = 0;
  ProblemCost cost;
  TimePoint computed;  // when the lane had the results
};

// Owned by the handler, then the batcher, then the lane. `done` is called exactly once, on any
// thread, with results in the order of plan->outputs or with an error; it must not block.
struct Task {
  std::shared_ptr<const Plan> plan;
  std::map<std::string, Spans> payloads;  // by tensor name
  std::shared_ptr<void> payload_owner;    // keeps the slices; dropped right after the gather
  int priority = 0;                       // higher runs first
  std::string client;                     // takes turns with other clients
  TimePoint admitted;
  TimePoint deadline = TimePoint::max();
  std::shared_ptr<std::atomic<bool>> cancelled;  // set by the transport; never null
  int64_t charged_bytes = 0;     // payloads + planned workspace, as counted in the byte budget
  std::shared_ptr<void> charge;  // the share; the bytes return with its last reference

  std::function<void(absl::Status status, std::vector<Result> results, const Phases& phases)> done;
};

// The status of a call that was cancelled at `now`: DEADLINE_EXCEEDED if its deadline is about
// then, else CANCELLED.
absl::Status WhyCancelled(TimePoint started, TimePoint deadline, TimePoint now);

// OK: the task may run. DEADLINE_EXCEEDED or CANCELLED: its result is not wanted any more.
absl::Status CheckAlive(const Task& task, TimePoint now);

// DEADLINE_EXCEEDED for a request that is predicted to need `own` seconds after `ahead` seconds of
// others, while its deadline leaves `left`.
absl::Status Hopeless(double own, double ahead, double left);

// The reason behind an error of CheckAlive, Hopeless or a run, by its code.
Refusal RefusalOf(const absl::Status& status);

// Calls `done` and frees the task. An exception of `done` (no memory) is logged.
// REQUIRES: no lock is held.
void Finish(std::unique_ptr<Task> task, absl::Status status, std::vector<Result> results,
            const Phases& phases) noexcept;

}  // namespace attnd
