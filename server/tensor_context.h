// The parts of the server that all requests for attention share.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/core/mutex.h"
#include "kernels/engine/engine.h"
#include "server/batcher.h"
#include "server/budget.h"
#include "server/intake.h"
#include "server/line_limit.h"
#include "server/metrics.h"
#include "server/predictions.h"
#include "server/request_plan.h"

namespace attnd {

class Lanes;
class Planner;

// Counts open calls, so that a drain can wait for their end. Thread safe.
class OpenCalls {
 public:
  void Add(int change);
  int count() const;
  // False if some are still open at `until`.
  bool WaitNone(TimePoint until);

 private:
  mutable Mutex mu_;
  CondVar none_;
  int count_ ATTND_GUARDED_BY(mu_) = 0;
};

// Outlives the transport and the lanes.
struct TensorContext {
  // --- constant once calls arrive ---
  std::shared_ptr<Engine> engine;  // shared with the slices of replies on their way out
  // Of each device of the engine.
  std::vector<Batcher*> batchers;
  std::vector<Lanes*> lanes;
  // For inputs and workspace of the device; null: the host's budget counts them.
  std::vector<Budget*> device_budgets;
  Planner* planner = nullptr;
  const Predictions* predictions = nullptr;
  Metrics* metrics = nullptr;
  const Clock* clock = nullptr;
  std::vector<std::string> devices;
  int64_t max_message_bytes = 0;
  int64_t undeclared_bytes = 16 << 20;  // assumed for a message without a declared size
  int max_priority = 0;                 // of callers, except those of Unix sockets
  double max_request_seconds = 0;       // predicted; 0: none
  bool logs_requests = false;           // all; else only some of those that fail

  // --- polling thread, except Intake::OnShortage ---
  Intake* intake = nullptr;

  // --- thread safe ---
  Budget* budget = nullptr;
  std::atomic<bool> draining{false};
  OpenCalls open;
  LineLimit refused_lines;

  // The queue of the device with this name; all queues if it is empty, not known yet, or no name of
  // a device.
  std::span<Batcher* const> BatchersOf(std::optional<absl::string_view> device) const;
  DecodeContext decode(const std::string& client) const;
  // AddPlan with the engine, recorded in the metrics. A request of `client` that names no device
  // gets that where it is predicted to be done first, behind what is queued there by now, of those
  // whose memory it fits. `control` can stop a plan; may be null. Any thread.
  absl::Status AddPlan(const std::string& client, DecodedRequest* request,
                       RunControl* control) const;
  int MaxPriority(const std::string& client) const;

 private:
  absl::StatusOr<std::shared_ptr<const Plan>> PlanFor(const Call& call, const std::string& client,
                                                      int priority, RunControl* control) const;
  // Whether the request could run on an idle server.
  bool Fits(const Plan& plan) const;
};

}  // namespace attnd
