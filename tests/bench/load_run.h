// Runs a load and counts the outcomes.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "tests/bench/latency_histogram.h"
#include "tests/bench/load_options.h"

namespace attnd::bench {

struct LoadReport {
  int64_t requests = 0;                        // that were sent
  int64_t ok = 0;                              // answered with a result
  std::map<std::string, int64_t> refused;      // by code
  std::map<std::string, std::string> reasons;  // the first of each code
  int64_t mismatches = 0;                      // of --check
  int64_t tokens = 0;                          // B * N of `ok` requests, as are the following
  int64_t sent_bytes = 0, received_bytes = 0;  // payloads
  double seconds = 0;                          // from the first departure to the last answer
  LatencyHistogram latency;                    // nanoseconds, of `ok` requests
};

// Errors: what the connection or a request sent alone (--check) failed with.
absl::StatusOr<LoadReport> RunLoad(const LoadOptions& options);

}  // namespace attnd::bench
