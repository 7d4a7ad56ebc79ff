#include "server/metrics_series.h"

#include <utility>

namespace attnd {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Labels;
using Bounds = Histogram::BucketBoundaries;

// first, first * ratio, ... `count` of them.
Bounds Powers(double first, double ratio, int count) {
  Bounds bounds;
  for (double bound = first; count > 0; --count, bound *= ratio) bounds.push_back(bound);
  return bounds;
}

template <class T>
prometheus::Family<T>& Add(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::detail::Builder<T>().Name(name).Help(help).Register(registry);
}

}  // namespace

Bounds SecondsBounds() {
  Bounds bounds;
  for (const double decade : {1e-5, 1e-4, 1e-3, 1e-2, 1e-1}) {
    for (const double step : {1.0, 2.5, 5.0}) bounds.push_back(decade * step);
  }
  for (const double bound : {1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0}) {
    bounds.push_back(bound);
  }
  return bounds;
}

Families::Families(prometheus::Registry& r)
    : requests(Add<Counter>(r, "attnd_requests_total", "Answered calls, refused ones included.")),
      tokens(Add<Counter>(r, "attnd_tokens_total", "Query positions (B * Nq) computed.")),
      flops(Add<Counter>(r, "attnd_flops_total", "Floating point operations by formula.")),
      batch_seconds(Add<Counter>(r, "attnd_batch_compute_seconds_total",
                                 "Computing batches, each counted once.")),
      dispatch(Add<Counter>(r, "attnd_dispatch_total", "Batches by what closed them.")),
      refused(Add<Counter>(r, "attnd_refused_total", "Calls that got no result, by reason.")),
      received(Add<Counter>(r, "attnd_received_bytes_total", "Message bytes received.")),
      sent(Add<Counter>(r, "attnd_sent_bytes_total", "Message bytes sent.")),
      busy(Add<Counter>(r, "attnd_lane_busy_seconds_total", "Time a lane spent on batches.")),
      calls(Add<Counter>(r, "attnd_calls_total", "Calls of every rpc that ended, by code.")),
      device_errors(Add<Counter>(r, "attnd_device_errors_total",
                                 "Runs and copies that a device failed or had no memory for.")),
      request(
          Add<Histogram>(r, "attnd_request_seconds", "From headers until the answer has left.")),
      queue(Add<Histogram>(r, "attnd_queue_seconds",
                           "From admission until a lane took the request or it was dropped.")),
      gather(Add<Histogram>(r, "attnd_gather_seconds", "Copying payloads into lane memory.")),
      compute(Add<Histogram>(r, "attnd_compute_seconds",
                             "Computing the batch of the request: once for each of its requests.")),
      answer(Add<Histogram>(r, "attnd_answer_seconds", "Building the reply.")),
      batch_requests(Add<Histogram>(r, "attnd_batch_requests", "Requests of a batch.")),
      batch_tokens(Add<Histogram>(r, "attnd_batch_tokens", "Query positions of a batch.")),
      workspace(Add<Histogram>(r, "attnd_workspace_peak_bytes",
                               "Highest scratch and output memory of a batch.")),
      poll_delay(Add<Histogram>(r, "attnd_poll_delay_seconds",
                                "How long an event waits for the polling thread.")),
      plan(Add<Histogram>(r, "attnd_plan_seconds",
                          "Checking a request or an estimate and predicting its cost.")),
      inflight(Add<Gauge>(r, "attnd_inflight_requests", "Calls that began and have not ended.")),
      efficiency(Add<Gauge>(r, "attnd_lane_efficiency_ratio",
                            "FLOP/s over the peak of the device, in the last 10 s of compute: of "
                            "the processor as measured at start in float32, of a CUDA device by "
                            "the data sheet of its tensor cores in 16 bits.")),
      open_calls(Add<Gauge>(r, "attnd_open_calls", "Calls of every rpc that have not ended.")),
      build(Add<Gauge>(r, "attnd_build_info", "Constant 1; the build is in the labels.")) {}

size_t IndexOf(absl::StatusCode code) {
  const auto number = static_cast<size_t>(code);
  return number < kCodes ? number : static_cast<size_t>(absl::StatusCode::kUnknown);
}

RpcSeries::RpcSeries(Families* families, std::string rpc)
    : families_(families),
      rpc_(std::move(rpc)),
      open_(&families->open_calls.Add({{"rpc", rpc_}})) {}

Counter& RpcSeries::Ended(absl::StatusCode code) {
  const size_t index = IndexOf(code);
  if (Counter* known = ended_[index].load(std::memory_order_acquire)) return *known;
  // Two threads that add the same labels get the same counter.
  Counter& added = families_->calls.Add(
      {{"rpc", rpc_}, {"code", absl::StatusCodeToString(static_cast<absl::StatusCode>(index))}});
  ended_[index].store(&added, std::memory_order_release);
  return added;
}

MethodSeries::MethodSeries(Families* families, std::string method, Direction direction,
                           std::vector<std::string> devices)
    : families_(families),
      method_(std::move(method)),
      devices_(std::move(devices)),
      labels_{{"method", method_}, {"direction", std::string(Name(direction))}} {}

MethodSeries::Ends& MethodSeries::EndsOf(absl::StatusCode code) {
  const size_t index = IndexOf(code);
  Ends& ends = ends_[index];
  std::call_once(ends.once, [&] { ends.count = &families_->requests.Add(LabelsOf(index)); });
  return ends;
}

Labels MethodSeries::LabelsOf(size_t code) const {
  Labels labels = labels_;
  labels["code"] = absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
  return labels;
}

Histogram& MethodSeries::RequestSeconds(absl::StatusCode code) {
  std::atomic<Histogram*>& seconds = EndsOf(code).seconds;
  if (Histogram* known = seconds.load(std::memory_order_acquire)) return *known;
  // Two threads that add the same labels get the same histogram.
  Histogram& added = families_->request.Add(LabelsOf(IndexOf(code)), SecondsBounds());
  seconds.store(&added, std::memory_order_release);
  return added;
}

std::vector<MethodSeries::Counters> MethodSeries::AddCounters() {
  std::vector<Counters> counters;
  for (const std::string& device : devices_) {
    Labels labels = labels_;
    labels["device"] = device;
    counters.push_back({&families_->tokens.Add(labels), &families_->flops.Add(labels),
                        &families_->batch_seconds.Add(labels)});
  }
  return counters;
}

MethodSeries::Handles MethodSeries::MakeHandles() {
  const auto seconds = [&](prometheus::Family<Histogram>& family) {
    return &family.Add(labels_, SecondsBounds());
  };
  const Labels by_method{{"method", method_}};
  return {.counters = AddCounters(),
          .plan = seconds(families_->plan),
          .queue = seconds(families_->queue),
          .gather = seconds(families_->gather),
          .compute = seconds(families_->compute),
          .answer = seconds(families_->answer),
          .workspace = &families_->workspace.Add(labels_, Powers(65536, 4, 10)),
          .batch_requests = &families_->batch_requests.Add(by_method, Powers(1, 2, 8)),
          .batch_tokens = &families_->batch_tokens.Add(by_method, Powers(64, 4, 9))};
}

const MethodSeries::Handles& MethodSeries::handles() {
  std::call_once(once_, [this] { handles_ = MakeHandles(); });
  return handles_;
}

}  // namespace attnd
