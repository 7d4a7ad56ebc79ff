#include "server/metrics.h"

#include <prometheus/text_serializer.h>

#include <array>
#include <cmath>
#include <exception>
#include <map>
#include <utility>

#include "kernels/core/mutex.h"
#include "server/log.h"
#include "server/metrics_series.h"
#include "server/process.h"

namespace attnd {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Labels;

constexpr size_t kRefusals = 8;
constexpr double kMemory = 10.0;  // seconds of compute that the efficiency looks back on

struct LaneSeries {
  Counter* busy = nullptr;
  Gauge* efficiency = nullptr;
  Mutex mu;
  double flops ATTND_GUARDED_BY(mu) = 0;  // both fade out over kMemory seconds of compute
  double seconds ATTND_GUARDED_BY(mu) = 0;
};

absl::string_view Name(Batcher::Reason reason) {
  return reason == Batcher::Reason::kFull ? "full" : "idle";
}

constexpr const char* kRefusalNames[kRefusals] = {"queue_full", "bytes", "deadline", "cancelled",
                                                  "draining",   "auth",  "quota",    "invalid"};

using Rows = std::vector<std::pair<Labels, double>>;

// A family whose values are read now.
prometheus::MetricFamily State(const char* name, const char* help, const Rows& rows,
                               prometheus::MetricType type = prometheus::MetricType::Gauge) {
  prometheus::MetricFamily family{.name = name, .help = help, .type = type, .metric = {}};
  for (const auto& [labels, value] : rows) {
    prometheus::ClientMetric metric;
    for (const auto& [label, text] : labels) metric.label.push_back({label, text});
    metric.gauge.value = value;
    metric.counter.value = value;
    family.metric.push_back(std::move(metric));
  }
  return family;
}

double Number(int64_t value) { return static_cast<double>(value); }

void AppendProcess(std::vector<prometheus::MetricFamily>* families) {
  const ProcessStats stats = ReadProcessStats();
  const auto add = [&](const char* name, const char* help, double value) {
    families->push_back(State(name, help, {{{}, value}}));
  };
  families->push_back(State("process_cpu_seconds_total", "User and system time.",
                            {{{}, stats.cpu_seconds}}, prometheus::MetricType::Counter));
  add("process_resident_memory_bytes", "Resident memory.", Number(stats.resident_bytes));
  add("process_virtual_memory_bytes", "Virtual memory.", Number(stats.virtual_bytes));
  add("process_open_fds", "Open file descriptors.", Number(stats.open_fds));
  add("process_max_fds", "File descriptors that may be open.", Number(stats.max_fds));
  add("process_threads", "Threads.", Number(stats.threads));
  add("process_start_time_seconds", "Start, in seconds since the epoch.", stats.start_time_seconds);
}

// Recording never throws: what cannot be counted for want of memory is not counted.
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

  using Pair = std::array<std::unique_ptr<MethodSeries>, 2>;
  Pair MakePair(const std::string& method);

  const Options options;
  prometheus::Registry registry;
  Families families;
  std::map<std::string, Pair, std::less<>> series;  // constant after construction
  Pair unknown;
  std::vector<std::unique_ptr<LaneSeries>> lanes;
  std::array<Counter*, kRefusals> refused;
  Counter *idle, *full, *received, *sent;
  Gauge* inflight;
  prometheus::Histogram* poll_delay;
  Sources sources;
};

Metrics::Impl::Pair Metrics::Impl::MakePair(const std::string& method) {
  const auto make = [&](Direction direction) {
    return std::make_unique<MethodSeries>(&families, method, direction, options.device);
  };
  return {make(Direction::kForward), make(Direction::kBackward)};
}

Metrics::Impl::Impl(const Options& o) : options(o), families(registry) {
  unknown = MakePair("unknown");
  for (const std::string& method : options.methods) {
    for (const std::unique_ptr<MethodSeries>& one : series[method] = MakePair(method)) {
      one->Requests(absl::StatusCode::kOk);
      // So that a rate sees the first fault, too.
      one->Requests(absl::StatusCode::kInternal);
      one->AddCounters();
    }
  }
  for (int i = 0; i < options.lanes; ++i) {
    const Labels labels{{"device", options.device}, {"lane", std::to_string(i)}};
    lanes.push_back(std::make_unique<LaneSeries>());
    lanes.back()->busy = &families.busy.Add(labels);
    lanes.back()->efficiency = &families.efficiency.Add(labels);
  }
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

void Metrics::SetSources(Sources sources) { impl_->sources = std::move(sources); }

void Metrics::RecordRequest(absl::string_view method, Direction direction, absl::StatusCode code,
                            double seconds) noexcept {
  Try([&] {
    MethodSeries& series = impl_->Of(method, direction);
    series.Requests(code).Increment();
    series.handles().request->Observe(seconds);
  });
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
    series.counters.tokens->Increment(Number(plan.tokens));
    series.counters.flops->Increment(phases.taken.flops);
  });
}

void Metrics::RecordBatch(int lane, const BatchRun& run) noexcept {
  Try([&] {
    const MethodSeries::Handles& series = impl_->Of(run.method, run.direction).handles();
    series.batch_requests->Observe(Number(run.requests));
    series.batch_tokens->Observe(Number(run.tokens));
    series.workspace->Observe(Number(run.peak_workspace_bytes));
    LaneSeries& state = *impl_->lanes.at(lane);
    MutexLock lock(&state.mu);
    const double fade = std::exp(-run.compute_seconds / kMemory);
    state.flops = state.flops * fade + run.flops;
    state.seconds = state.seconds * fade + run.compute_seconds;
    const double possible = state.seconds * impl_->options.peak_flops;
    if (possible > 0) state.efficiency->Set(state.flops / possible);
  });
}

void Metrics::AddBusySeconds(int lane, double seconds) noexcept {
  Try([&] { impl_->lanes.at(lane)->busy->Increment(seconds); });
}

absl::StatusOr<std::string> Metrics::Text() const noexcept {
  try {
    std::vector<prometheus::MetricFamily> families = impl_->registry.Collect();
    const Sources& sources = impl_->sources;
    const Batcher::Depth depth = sources.queue ? sources.queue() : Batcher::Depth{};
    families.push_back(
        State("attnd_queue_requests", "Requests waiting.", {{{}, Number(depth.requests)}}));
    families.push_back(State("attnd_queue_bytes", "Bytes charged for waiting requests.",
                             {{{}, Number(depth.bytes)}}));
    families.push_back(State("attnd_queue_oldest_seconds", "How long the oldest has been waiting.",
                             {{{}, depth.oldest_seconds}}));
    families.push_back(State("attnd_parked_requests",
                             "Calls that wait, unread, for room in the byte budget.",
                             {{{}, Number(sources.parked ? sources.parked() : 0)}}));
    const Memory memory = sources.memory ? sources.memory() : Memory{};
    Rows rows;
    const auto add = [&](const char* kind, int64_t bytes) {
      rows.push_back({{{"device", impl_->options.device}, {"kind", kind}}, Number(bytes)});
    };
    add("workspace", memory.workspace);
    add("pool_used", memory.pool_used);
    add("pool_reserved", memory.pool_reserved);
    add("budget", memory.budget);
    add("peak", memory.peak);
    add("charged", memory.charged);
    families.push_back(State("attnd_memory_bytes", "Tensor memory by kind.", rows));
    Rows stuck;
    for (const auto& [part, seconds] : sources.stuck ? sources.stuck() : Stuck{}) {
      stuck.push_back({{{"part", part}}, seconds});
    }
    families.push_back(State("attnd_stuck_seconds",
                             "How long a part of the server has made no progress; 0: it works.",
                             stuck));
    families.push_back(State("attnd_log_lines_dropped_total",
                             "Lines for standard error that nobody read in time.",
                             {{{}, Number(LogLinesDropped())}}, prometheus::MetricType::Counter));
    AppendProcess(&families);
    return prometheus::TextSerializer().Serialize(families);
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("metrics: ", e.what()));
  }
}

}  // namespace attnd
