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

// Time comes in as an argument, so that tests own it.
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

// What something is predicted to take, alone on the machine.
struct PredictedSeconds {
  double likely = 0;
  double sure = 0;   // at least: for its own deadline
  double ahead = 0;  // counted by those behind it, who are late if it is

  void operator+=(const PredictedSeconds& other) {
    likely += other.likely;
    sure += other.sure;
    ahead += other.ahead;
  }
};

// What delays a request, in predicted seconds as those behind it count them.
struct SecondsAhead {
  double patient = 0;  // what delays it for no longer than it is patient
  double own = 0;      // of its own priority or client
};

// Why a request got no result; the label of attnd_refused_total.
enum class Refusal : uint8_t {
  kQueueFull,
  kBytes,
  kDeadline,
  kCancelled,
  kDraining,
  kInvalid,
  kSeconds,  // beyond --max-request-seconds, predicted or run
};

struct Phases {
  double queue_seconds = 0, gather_seconds = 0, compute_seconds = 0;
  int64_t batch_requests = 0, batch_tokens = 0, peak_workspace_bytes = 0;
  ProblemCost cost;
  TimePoint computed;  // when the lane had the results
};

// Owned by whoever has it: handler, then batcher, then lane. `done` is called exactly once, on any
// thread, with results in the order of plan->outputs or with an error; it must not block.
struct Task {
  std::shared_ptr<const Plan> plan;
  std::map<std::string, Spans> payloads;  // by tensor name
  std::shared_ptr<void> payload_owner;    // keeps the slices; dropped right after the gather
  int priority = 0;                       // higher runs first
  std::string client;                     // takes turns with others
  TimePoint admitted;
  TimePoint deadline = TimePoint::max();
  std::shared_ptr<std::atomic<bool>> cancelled;  // set by the transport; never null
  int64_t charged_bytes = 0;     // payloads + planned workspace, as counted in the byte budget
  std::shared_ptr<void> charge;  // what counts them there; they return with its last reference

  std::function<void(absl::Status status, std::vector<Result> results, const Phases& phases)> done;
};

// DEADLINE_EXCEEDED if a call that was cancelled ends about when its time is over, else CANCELLED.
absl::Status WhyCancelled(TimePoint started, TimePoint deadline, TimePoint now);

// OK: it may run. DEADLINE_EXCEEDED or CANCELLED: nobody waits for it any more.
absl::Status CheckAlive(const Task& task, TimePoint now);

// DEADLINE_EXCEEDED for a request that is predicted to need `own` seconds once others have had
// `ahead`, while its deadline leaves it `left`.
absl::Status Hopeless(double own, double ahead, double left);

// Whether an answer says that nobody waits any more.
bool IsDead(const absl::Status& status);

// The reason behind an error of CheckAlive, Hopeless or a run, by its code.
Refusal RefusalOf(const absl::Status& status);

// Calls `done` and frees the task. An exception of `done` (no memory) is logged and ends there.
// REQUIRES: no lock is held.
void Finish(std::unique_ptr<Task> task, absl::Status status, std::vector<Result> results,
            const Phases& phases) noexcept;

}  // namespace attnd
