// Metrics whose values are read when somebody asks.
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

#include "server/metrics.h"

namespace attnd {

// What the sources tell at this moment, what the log lost, and the process.
void AppendStates(const Metrics::Sources& sources, const std::vector<std::string>& devices,
                  std::vector<prometheus::MetricFamily>* families);

}  // namespace attnd
