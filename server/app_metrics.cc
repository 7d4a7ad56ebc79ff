// What the metrics read of the parts of the server.
#include <algorithm>

#include "server/app.h"

namespace attnd {
namespace {

Metrics::PoolMemory MemoryOf(const PoolStats& pool, int64_t input_bytes) {
  const int64_t inputs = std::min(input_bytes, pool.used_bytes);
  return {.inputs = inputs,
          .workspace = pool.used_bytes - inputs,
          .retained = pool.reserved_bytes - pool.used_bytes,
          .peak = pool.peak_bytes};
}

}  // namespace

// Waits for answers on their way to be counted, so that a scrape right after an answer includes it.
absl::StatusOr<std::string> App::MetricsPage() {
  transport_->Settle(std::chrono::milliseconds(25));
  return metrics_->Text();
}

Metrics::Connections App::CountConnections() const {
  const Connections::Counts counts = transport_->connections();
  return {.open = counts.open,
          .accepted = counts.accepted,
          .refused = counts.refused,
          .cut_off = counts.cut_off};
}

Batcher::Depth App::Depth() const {
  Batcher::Depth all;
  for (const DeviceQueue& queue : queues_) {
    const Batcher::Depth depth = queue.batcher->depth();
    all.requests += depth.requests;
    all.bytes += depth.bytes;
    all.oldest_seconds = std::max(all.oldest_seconds, depth.oldest_seconds);
  }
  return all;
}

Metrics::Memory App::Memory() const {
  Metrics::Memory memory{.budget = budget_->total(),
                         .charged = budget_->used(),
                         .pattern_cache = engine_->cached_pattern_bytes()};
  int64_t host_inputs = 0;
  for (size_t i = 0; i < queues_.size(); ++i) {
    const DeviceQueue& queue = queues_[i];
    Metrics::DeviceMemory& device = memory.devices.emplace_back();
    device.pool = MemoryOf(engine_->device(i).memory().stats(), queue.lanes->input_bytes());
    host_inputs += queue.lanes->host_input_bytes();
    if (queue.memory == nullptr) continue;
    device.budget = queue.memory->total();
    device.charged = queue.memory->used();
  }
  const PoolStats host = engine_->host_memory();
  if (host.allocations > 0) memory.host = MemoryOf(host, host_inputs);
  return memory;
}

std::vector<Metrics::DeviceState> App::DeviceStates() const {
  std::vector<Metrics::DeviceState> states;
  for (size_t i = 0; i < engine_->devices(); ++i) {
    const Device& device = engine_->device(i);
    states.push_back({.counters = device.counters(),
                      .readings = device.readings(),
                      .is_copied = !device.info().has_host_memory,
                      .self_test = &self_tests_[i]});
  }
  return states;
}

}  // namespace attnd
