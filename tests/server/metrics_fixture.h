// What tests of the page /metrics share.
#pragma once

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "server/metrics.h"

namespace attnd {

// The value of one series, -1 if there is none.
inline double Value(const Metrics& metrics, const std::string& series) {
  const std::string text = *metrics.Text();
  for (const auto line : absl::StrSplit(text, '\n')) {
    double value = 0;
    if (absl::StartsWith(line, series + " ") &&
        absl::SimpleAtod(line.substr(series.size() + 1), &value)) {
      return value;
    }
  }
  return -1;
}

// With memory of its own, and a driver that knows everything.
inline Metrics::DeviceState ReadDevice() {
  return {.counters = {.launches = 7, .bytes_to_device = 300, .bytes_to_host = 100},
          .readings = {.utilisation = 0.5,
                       .power_watts = 300.5,
                       .temperature_celsius = 61,
                       .memory_used_bytes = 3,
                       .memory_total_bytes = 8},
          .is_copied = true};
}

}  // namespace attnd
