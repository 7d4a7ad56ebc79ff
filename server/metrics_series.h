// The series behind metrics.h: families by name, and the handles of one method and direction.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <array>
#include <atomic>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "kernels/method.h"

namespace attnd {

// Of histograms of seconds: from a small request on an idle server to the longest that is served.
prometheus::Histogram::BucketBoundaries SecondsBounds();

struct Families {
  explicit Families(prometheus::Registry& registry);

  template <class T>
  using Family = prometheus::Family<T>;
  Family<prometheus::Counter>&requests, &tokens, &flops, &dispatch, &refused, &received, &sent,
      &busy;
  Family<prometheus::Histogram>&request, &queue, &gather, &compute, &answer, &batch_requests,
      &batch_tokens, &workspace, &poll_delay;
  Family<prometheus::Gauge>&inflight, &efficiency, &build;
};

// Thread safe; what it hands out lives as long as the families. May throw std::bad_alloc.
class MethodSeries {
 public:
  MethodSeries(Families* families, std::string method, Direction direction, std::string device);

  // Codes that gRPC does not have count as UNKNOWN.
  prometheus::Counter& Requests(absl::StatusCode code);

  struct Counters {
    prometheus::Counter *tokens, *flops;
  };
  Counters AddCounters();  // those of before, if called again

  struct Handles {
    Counters counters;
    prometheus::Histogram *request, *queue, *gather, *compute, *answer, *workspace;
    prometheus::Histogram *batch_requests, *batch_tokens;  // of both directions
  };
  const Handles& handles();  // made by the first call

 private:
  static constexpr size_t kCodes = 17;  // of gRPC, 0..16
  Handles MakeHandles();

  Families* const families_;
  const std::string method_, device_;
  const prometheus::Labels labels_;
  std::array<std::atomic<prometheus::Counter*>, kCodes> requests_{};
  std::once_flag once_;
  Handles handles_{};
};

}  // namespace attnd
