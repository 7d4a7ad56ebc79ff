#include "server/metrics.h"

#include <prometheus/text_serializer.h>

#include <array>
#include <cmath>
#include <exception>
#include <map>
#include <utility>

#include "kernels/core/mutex.h"
#include "kernels/method/method.h"
#include "server/metrics_series.h"
#include "server/metrics_states.h"

namespace attnd {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Labels;

constexpr size_t kRefusals = 8;
constexpr double kMemory = 10.0;  // seconds of compute that the efficiency averages over

struct LaneSeries {
  size_t device = 0;
  double peak_flops = 0;  // of the device
  Counter* busy = nullptr;
  Gauge* efficiency = nullptr;
  Mutex mu;
  double flops ATTND_GUARDED_BY(mu) = 0;  // both decay over kMemory seconds of compute
  double seconds ATTND_GUARDED_BY(mu) = 0;
};

absl::string_view Name(Batcher::Reason reason) {
  return reason == Batcher::Reason::kFull ? "full" : "idle";
}

constexpr const char* kRefusalNames[kRefusals] = {"queue_full", "bytes",   "deadline", "cancelled",
                                                  "draining",   "invalid", "seconds",  "device"};

std::vector<std::string> NamesOf(const std::vector<Metrics::DeviceOptions>& devices) {
  std::vector<std::string> names;
  for (const Metrics::DeviceOptions& device : devices) names.push_back(device.name);
  return names;
}

double Number(int64_t value) { return static_cast<double>(value); }

// Recording never throws: an event is not counted if there is no memory for it.
template <class F>
void Try(const F& record) noexcept {
  try {
    record();
  } catch (...) {
  }
}

}  // namespace

struct Metrics::Impl {
  explicit Impl(const Options& o);

  MethodSeries& Of(absl::string_view method, Direction direction) {
    const auto found = series.find(std::string_view(method.data(), method.size()));
    return *(found == series.end() ? unknown : found->second)[static_cast<size_t>(direction)];
  }

  RpcSeries& OfRpc(absl::string_view rpc) {
    const auto found = rpcs.find(std::string_view(rpc.data(), rpc.size()));
    return found == rpcs.end() ? *unknown_rpc : *found->second;
  }

  void AddDevice(size_t index);

  using Pair = std::array<std::unique_ptr<MethodSeries>, 2>;
  Pair MakePair(const std::string& method);

  const Options options;
  const std::vector<std::string> device_names;
  prometheus::Registry registry;
  Families families;
  std::map<std::string, Pair, std::less<>> series;  // constant after construction
  Pair unknown;
  std::map<std::string, std::unique_ptr<RpcSeries>, std::less<>> rpcs;  // constant after SetRpcs
  std::unique_ptr<RpcSeries> unknown_rpc;
  std::vector<std::unique_ptr<LaneSeries>> lanes;
  std::vector<Counter*> device_errors;  // those of a device, one after the other
  std::array<Counter*, kRefusals> refused;
  Counter *idle, *full, *received, *sent;
  Gauge* inflight;
  prometheus::Histogram* poll_delay;
  Sources sources;
};

Metrics::Impl::Pair Metrics::Impl::MakePair(const std::string& method) {
  const auto make = [&](Direction direction) {
    return std::make_unique<MethodSeries>(&families, method, direction, device_names);
  };
  return {make(Direction::kForward), make(Direction::kBackward)};
}

void Metrics::Impl::AddDevice(size_t index) {
  const DeviceOptions& device = options.devices[index];
  for (const char* kind : {"failed", "memory"}) {  // in the order of DeviceError
    device_errors.push_back(&families.device_errors.Add({{"device", device.name}, {"kind", kind}}));
  }
  for (int i = 0; i < options.lanes; ++i) {
    const Labels labels{{"device", device.name}, {"lane", std::to_string(lanes.size())}};
    lanes.push_back(std::make_unique<LaneSeries>());
    lanes.back()->device = index;
    lanes.back()->peak_flops = device.peak_flops;
    lanes.back()->busy = &families.busy.Add(labels);
    lanes.back()->efficiency = &families.efficiency.Add(labels);
  }
}

Metrics::Impl::Impl(const Options& o)
    : options(o), device_names(NamesOf(o.devices)), families(registry) {
  unknown = MakePair("unknown");
  for (const std::string& method : options.methods) {
    for (const std::unique_ptr<MethodSeries>& one : series[method] = MakePair(method)) {
      one->Requests(absl::StatusCode::kOk);
      // Made now, so that a rate includes the first fault, too.
      one->Requests(absl::StatusCode::kInternal);
      one->AddCounters();
    }
  }
  unknown_rpc = std::make_unique<RpcSeries>(&families, "unknown");
  for (size_t i = 0; i < options.devices.size(); ++i) AddDevice(i);
  for (size_t i = 0; i < kRefusals; ++i) {
    refused[i] = &families.refused.Add({{"reason", kRefusalNames[i]}});
  }
  idle = &families.dispatch.Add({{"reason", std::string(Name(Batcher::Reason::kIdle))}});
  full = &families.dispatch.Add({{"reason", std::string(Name(Batcher::Reason::kFull))}});
  received = &families.received.Add({{"transport", "grpc"}});
  sent = &families.sent.Add({{"transport", "grpc"}});
  inflight = &families.inflight.Add({});
  poll_delay = &families.poll_delay.Add({}, SecondsBounds());
  families.build.Add({{"version", options.version}, {"isa", options.isa}}).Set(1);
}

Metrics::Metrics(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
Metrics::~Metrics() = default;

void Metrics::SetRpcs(const std::vector<std::string>& rpcs) {
  for (const std::string& rpc : rpcs) {
    impl_->rpcs[rpc] = std::make_unique<RpcSeries>(&impl_->families, rpc.substr(1));
  }
}

void Metrics::SetSources(Sources sources) { impl_->sources = std::move(sources); }

void Metrics::RecordRequest(absl::string_view method, Direction direction, absl::StatusCode code,
                            double seconds) noexcept {
  Try([&] {
    MethodSeries& series = impl_->Of(method, direction);
    series.Requests(code).Increment();
    series.RequestSeconds(code).Observe(seconds);
    series.handles();  // so that rates of its other series begin with the first call, too
  });
}

void Metrics::CallBegan(absl::string_view rpc) noexcept { impl_->OfRpc(rpc).open().Increment(); }

void Metrics::CallEnded(absl::string_view rpc, absl::StatusCode code) noexcept {
  RpcSeries& series = impl_->OfRpc(rpc);
  if (!rpc.empty()) series.open().Decrement();
  Try([&] { series.Ended(code).Increment(); });
}

void Metrics::RecordPlan(absl::string_view method, Direction direction, double seconds) noexcept {
  Try([&] { impl_->Of(method, direction).handles().plan->Observe(seconds); });
}

void Metrics::RecordQueued(absl::string_view method, Direction direction, double seconds) noexcept {
  Try([&] { impl_->Of(method, direction).handles().queue->Observe(seconds); });
}

void Metrics::RecordAnswer(absl::string_view method, Direction direction, double seconds) noexcept {
  Try([&] { impl_->Of(method, direction).handles().answer->Observe(seconds); });
}

void Metrics::AddInflight(int change) noexcept { impl_->inflight->Increment(change); }

void Metrics::AddReceivedBytes(int64_t bytes) noexcept {
  impl_->received->Increment(Number(bytes));
}

void Metrics::AddSentBytes(int64_t bytes) noexcept { impl_->sent->Increment(Number(bytes)); }

void Metrics::RecordRefusal(Refusal refusal) noexcept {
  impl_->refused[static_cast<size_t>(refusal)]->Increment();
}

void Metrics::RecordPollDelay(double seconds) noexcept {
  Try([&] { impl_->poll_delay->Observe(seconds); });
}

void Metrics::RecordDispatch(Batcher::Reason reason) noexcept {
  (reason == Batcher::Reason::kFull ? impl_->full : impl_->idle)->Increment();
}

void Metrics::RecordTask(const Plan& plan, const Phases& phases) noexcept {
  Try([&] {
    const MethodSeries::Handles& series =
        impl_->Of(plan.method->info().id, plan.direction).handles();
    series.queue->Observe(phases.queue_seconds);
    series.gather->Observe(phases.gather_seconds);
    series.compute->Observe(phases.compute_seconds);
    const MethodSeries::Counters& counters = series.counters.at(plan.device);
    counters.tokens->Increment(Number(plan.tokens));
    counters.flops->Increment(phases.cost.flops);
  });
}

void Metrics::RecordBatch(int lane, const BatchRun& run) noexcept {
  Try([&] {
    const MethodSeries::Handles& series = impl_->Of(run.method, run.direction).handles();
    series.batch_requests->Observe(Number(run.requests));
    series.batch_tokens->Observe(Number(run.tokens));
    series.workspace->Observe(Number(run.peak_workspace_bytes));
    LaneSeries& state = *impl_->lanes.at(lane);
    series.counters.at(state.device).batch_seconds->Increment(run.compute_seconds);
    MutexLock lock(&state.mu);
    const double fade = std::exp(-run.compute_seconds / kMemory);
    state.flops = state.flops * fade + run.flops;
    state.seconds = state.seconds * fade + run.compute_seconds;
    const double possible = state.seconds * state.peak_flops;
    if (possible > 0) state.efficiency->Set(state.flops / possible);
  });
}

void Metrics::RecordDeviceError(size_t device, DeviceError error) noexcept {
  Try([&] { impl_->device_errors.at(2 * device + static_cast<size_t>(error))->Increment(); });
}

void Metrics::AddBusySeconds(int lane, double seconds) noexcept {
  Try([&] { impl_->lanes.at(lane)->busy->Increment(seconds); });
}

absl::StatusOr<std::string> Metrics::Text() const noexcept {
  try {
    std::vector<prometheus::MetricFamily> families = impl_->registry.Collect();
    AppendStates(impl_->sources, impl_->device_names, &families);
    return prometheus::TextSerializer().Serialize(families);
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("metrics: ", e.what()));
  }
}

}  // namespace attnd
