// Metrics whose values are read at each scrape.
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

#include "server/metrics.h"

namespace attnd {

// The current values of the sources, the lost log lines and the state of the process.
void AppendStates(const Metrics::Sources& sources, const std::vector<std::string>& devices,
                  std::vector<prometheus::MetricFamily>* families);

}  // namespace attnd
