// The series of metrics.h: families by name, and the handles of one method and direction.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/method/info.h"

namespace attnd {

// For histograms of seconds: from a small request on an idle server to the longest possible one.
prometheus::Histogram::BucketBoundaries SecondsBounds();

struct Families {
  explicit Families(prometheus::Registry& registry);

  template <class T>
  using Family = prometheus::Family<T>;
  Family<prometheus::Counter>&requests, &tokens, &flops, &batch_seconds, &dispatch, &refused,
      &received, &sent, &busy, &calls, &device_errors;
  Family<prometheus::Histogram>&request, &queue, &gather, &compute, &answer, &batch_requests,
      &batch_tokens, &workspace, &poll_delay, &plan;
  Family<prometheus::Gauge>&inflight, &efficiency, &open_calls, &build;
};

constexpr size_t kCodes = 17;  // of gRPC, 0..16
// Codes that gRPC does not have count as UNKNOWN.
size_t IndexOf(absl::StatusCode code);

// All calls of one rpc. Thread safe; may throw std::bad_alloc.
class RpcSeries {
 public:
  RpcSeries(Families* families, std::string rpc);
  prometheus::Gauge& open() { return *open_; }
  prometheus::Counter& Ended(absl::StatusCode code);

 private:
  Families* const families_;
  const std::string rpc_;
  prometheus::Gauge* const open_;
  std::array<std::atomic<prometheus::Counter*>, kCodes> ended_{};
};

// Thread safe; the returned series live as long as the families. May throw std::bad_alloc.
class MethodSeries {
 public:
  MethodSeries(Families* families, std::string method, Direction direction,
               std::vector<std::string> devices);

  // Codes that gRPC does not have count as UNKNOWN.
  prometheus::Counter& Requests(absl::StatusCode code) { return *EndsOf(code).count; }
  prometheus::Histogram& RequestSeconds(absl::StatusCode code);

  struct Counters {
    prometheus::Counter *tokens, *flops, *batch_seconds;
  };
  // Of each device; a second call returns the same.
  std::vector<Counters> AddCounters();

  struct Handles {
    std::vector<Counters> counters;  // of each device
    prometheus::Histogram *plan, *queue, *gather, *compute, *answer, *workspace;
    prometheus::Histogram *batch_requests, *batch_tokens;  // of both directions
  };
  const Handles& handles();  // made by the first call

 private:
  // Calls that ended with one code.
  struct Ends {
    std::once_flag once;
    prometheus::Counter* count = nullptr;
    std::atomic<prometheus::Histogram*> seconds{nullptr};  // made by the first call
  };
  Ends& EndsOf(absl::StatusCode code);
  prometheus::Labels LabelsOf(size_t code) const;
  Handles MakeHandles();

  Families* const families_;
  const std::string method_;
  const std::vector<std::string> devices_;
  const prometheus::Labels labels_;
  std::array<Ends, kCodes> ends_;
  std::once_flag once_;
  Handles handles_{};
};

}  // namespace attnd
