#include "server/tensor_context.h"

#include <algorithm>

#include "server/connections.h"

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
  if (device->empty()) return all.first(1);
  const auto found = std::find(devices.begin(), devices.end(), *device);
  if (found == devices.end()) return all;
  return all.subspan(static_cast<size_t>(found - devices.begin()), 1);
}

DecodeContext TensorContext::decode(const std::string& client) const {
  return {.devices = devices, .max_priority = MaxPriority(client)};
}

absl::Status TensorContext::AddPlan(DecodedRequest* request, RunControl* control) const {
  const TimePoint begin = clock->Now();
  absl::Status status = attnd::AddPlan(
      [this, control](const Call& call) { return engine->MakePlan(call, control); }, request);
  metrics->RecordPlan(request->call.method, request->call.direction, Seconds(clock->Now() - begin));
  return status;
}

int TensorContext::MaxPriority(const std::string& client) const {
  return IsUnixClient(client) ? kMaxPriority : max_priority;
}

}  // namespace attnd
