#include "server/tensor_context.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/core/status.h"
#include "server/connections.h"
#include "server/plan_limits.h"

namespace attnd {

void OpenCalls::Add(int change) {
  const MutexLock lock(&mu_);
  count_ += change;
  if (count_ == 0) none_.NotifyAll();
}

int OpenCalls::count() const {
  const MutexLock lock(&mu_);
  return count_;
}

bool OpenCalls::WaitNone(TimePoint until) {
  const MutexLock lock(&mu_);
  while (count_ > 0 && std::chrono::steady_clock::now() < until) none_.WaitUntil(&mu_, until);
  return count_ == 0;
}

std::span<Batcher* const> TensorContext::BatchersOf(std::optional<absl::string_view> device) const {
  const std::span<Batcher* const> all(batchers);
  if (!device.has_value()) return all;
  const auto found = std::find(devices.begin(), devices.end(), *device);
  if (found == devices.end()) return all;
  return all.subspan(static_cast<size_t>(found - devices.begin()), 1);
}

DecodeContext TensorContext::decode(const std::string& client) const {
  return {.devices = devices, .max_priority = MaxPriority(client)};
}

bool TensorContext::Fits(const Plan& plan) const {
  const PlanBytes need = BytesFor(*this, plan, plan.input_bytes);
  const Budget* const own = device_budgets[plan.device];
  return need.host <= budget->total() && (own == nullptr || need.device <= own->total());
}

absl::StatusOr<std::shared_ptr<const Plan>> TensorContext::PlanFor(const Call& call,
                                                                   const std::string& client,
                                                                   int priority,
                                                                   RunControl* control) const {
  auto plans = engine->MakePlans(call, control);
  ATTND_RETURN_IF_ERROR(plans.status());
  size_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < plans->size() && plans->size() > 1; ++i) {
    const Plan& plan = *(*plans)[i];
    if (!Fits(plan)) continue;
    const double seconds = batchers[plan.device]->SecondsUntilDone(client, priority, plan);
    if (seconds < least) best = i, least = seconds;
  }
  return std::move((*plans)[best]);
}

absl::Status TensorContext::AddPlan(const std::string& client, DecodedRequest* request,
                                    RunControl* control) const {
  const TimePoint begin = clock->Now();
  absl::Status status = attnd::AddPlan(
      [&](const Call& call) { return PlanFor(call, client, request->priority, control); }, request);
  if (request->plan != nullptr) request->device = devices[request->plan->device];
  metrics->RecordPlan(request->call.method, request->call.direction, Seconds(clock->Now() - begin));
  return status;
}

int TensorContext::MaxPriority(const std::string& client) const {
  return IsUnixClient(client) ? kMaxPriority : max_priority;
}

}  // namespace attnd
