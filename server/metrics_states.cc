#include "server/metrics_states.h"

#include <map>
#include <utility>

#include "server/log.h"
#include "server/process.h"

namespace attnd {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;
using Families = std::vector<MetricFamily>;

using Labels = std::map<std::string, std::string>;
using Rows = std::vector<std::pair<Labels, double>>;

// A family whose values are read now.
MetricFamily State(const char* name, const char* help, const Rows& rows,
                   MetricType type = MetricType::Gauge) {
  MetricFamily family{.name = name, .help = help, .type = type, .metric = {}};
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

void Append(const char* name, const char* help, double value, Families* families) {
  families->push_back(State(name, help, {{{}, value}}));
}

void AppendProcess(Families* families) {
  const ProcessStats stats = ReadProcessStats();
  const auto add = [&](const char* name, const char* help, double value) {
    Append(name, help, value, families);
  };
  families->push_back(State("process_cpu_seconds_total", "User and system time.",
                            {{{}, stats.cpu_seconds}}, MetricType::Counter));
  add("process_resident_memory_bytes", "Resident memory.", Number(stats.resident_bytes));
  add("process_virtual_memory_bytes", "Virtual memory.", Number(stats.virtual_bytes));
  add("process_open_fds", "Open file descriptors.", Number(stats.open_fds));
  add("process_max_fds", "File descriptors that may be open.", Number(stats.max_fds));
  add("process_threads", "Threads.", Number(stats.threads));
  add("process_start_time_seconds", "Start, in seconds since the epoch.", stats.start_time_seconds);
}

void AppendQueue(const Metrics::Sources& sources, Families* families) {
  const Batcher::Depth depth = sources.queue ? sources.queue() : Batcher::Depth{};
  Append("attnd_queue_requests", "Requests waiting.", Number(depth.requests), families);
  Append("attnd_queue_bytes", "Bytes charged for waiting requests.", Number(depth.bytes), families);
  Append("attnd_queue_oldest_seconds", "How long the oldest has been waiting.",
         depth.oldest_seconds, families);
  Append("attnd_parked_requests", "Calls that wait, unread, for room in the byte budget.",
         Number(sources.parked ? sources.parked() : 0), families);
}

void AppendMemory(const Metrics::Sources& sources, const std::vector<std::string>& devices,
                  Families* families) {
  Metrics::Memory memory = sources.memory ? sources.memory() : Metrics::Memory{};
  memory.devices.resize(devices.size());
  Rows kinds, peaks, budgets, charged;
  const auto add = [&](const std::string& device, const Metrics::PoolMemory& pool) {
    for (const auto& [kind, bytes] :
         {std::pair("inputs", pool.inputs), std::pair("workspace", pool.workspace),
          std::pair("retained", pool.retained)}) {
      kinds.push_back({{{"device", device}, {"kind", kind}}, Number(bytes)});
    }
    peaks.push_back({{{"device", device}}, Number(pool.peak)});
  };
  for (size_t i = 0; i < devices.size(); ++i) {
    const Metrics::DeviceMemory& device = memory.devices[i];
    add(devices[i], device.pool);
    if (device.budget == 0) continue;
    budgets.push_back({{{"device", devices[i]}}, Number(device.budget)});
    charged.push_back({{{"device", devices[i]}}, Number(device.charged)});
  }
  if (memory.host.has_value()) add("host", *memory.host);
  families->push_back(
      State("attnd_memory_bytes", "Memory for tensors: the kinds add up to all of it.", kinds));
  families->push_back(State("attnd_memory_peak_bytes",
                            "The most that inputs and workspace have taken together.", peaks));
  Append("attnd_budget_bytes", "Bytes that all requests together may hold.", Number(memory.budget),
         families);
  Append("attnd_budget_charged_bytes", "The part of the budget that requests hold.",
         Number(memory.charged), families);
  if (!budgets.empty()) {
    families->push_back(State("attnd_device_budget_bytes",
                              "Bytes that requests may hold of a device with separate memory.",
                              budgets));
    families->push_back(State("attnd_device_budget_charged_bytes",
                              "The part of a device's budget that requests hold.", charged));
  }
  Append("attnd_pattern_cache_bytes", "Sparsity patterns kept for the next request.",
         Number(memory.pattern_cache), families);
}

// Only what is measured: a family is there if a device has a row.
void AppendDevices(const Metrics::Sources& sources, const std::vector<std::string>& devices,
                   Families* families) {
  std::vector<Metrics::DeviceState> states;
  if (sources.devices) states = sources.devices();
  states.resize(devices.size());
  Rows launches, copied, proven, unusable, utilisation, power, temperature, memory;
  for (size_t i = 0; i < devices.size(); ++i) {
    const Labels of{{"device", devices[i]}};
    const auto with = [&](const char* label, const char* value) {
      Labels labels = of;
      labels[label] = value;
      return labels;
    };
    const Metrics::DeviceState& state = states[i];
    launches.push_back({of, Number(state.counters.launches)});
    if (state.is_copied) {
      copied.push_back({with("direction", "to_device"), Number(state.counters.bytes_to_device)});
      copied.push_back({with("direction", "to_host"), Number(state.counters.bytes_to_host)});
    }
    for (const SelfTestRow& row :
         state.self_test == nullptr ? std::vector<SelfTestRow>() : state.self_test->rows) {
      if (row.is_declined) continue;
      Labels labels = of;
      labels["primitive"] = row.primitive;
      labels["dtype"] = row.dtype;
      proven.push_back({labels, row.failure.empty() ? 1.0 : 0.0});
    }
    const DeviceReadings& read = state.readings;
    if (read.utilisation) utilisation.push_back({of, *read.utilisation});
    if (read.power_watts) power.push_back({of, *read.power_watts});
    if (read.temperature_celsius) temperature.push_back({of, *read.temperature_celsius});
    if (read.memory_used_bytes && read.memory_total_bytes) {
      memory.push_back({with("kind", "used"), Number(*read.memory_used_bytes)});
      memory.push_back({with("kind", "total"), Number(*read.memory_total_bytes)});
    }
  }
  for (const std::string& device : sources.unusable_devices) {
    unusable.push_back({{{"device", device}}, 1});
  }
  const auto add = [&](const char* name, const char* help, const Rows& rows, MetricType type) {
    if (!rows.empty()) families->push_back(State(name, help, rows, type));
  };
  add("attnd_device_launches_total", "Primitives launched on a device, each over a whole batch.",
      launches, MetricType::Counter);
  add("attnd_device_copied_bytes_total", "Bytes copied between the host and a device.", copied,
      MetricType::Counter);
  add("attnd_device_self_test_passed",
      "1: this primitive agreed with the processor at start-up; 0: it is switched off.", proven,
      MetricType::Gauge);
  add("attnd_device_unusable",
      "1: a device that its driver has serves nothing since the start; the log tells why.",
      unusable, MetricType::Gauge);
  add("attnd_device_utilisation_ratio", "Time in which a device ran something, by its driver.",
      utilisation, MetricType::Gauge);
  add("attnd_device_power_watts", "Power that a device takes.", power, MetricType::Gauge);
  add("attnd_device_temperature_celsius", "Temperature of a device.", temperature,
      MetricType::Gauge);
  add("attnd_device_memory_bytes", "Memory of a device, and the part that all processes use of it.",
      memory, MetricType::Gauge);
}

void AppendConnections(const Metrics::Sources& sources, Families* families) {
  const Metrics::Connections connections =
      sources.connections ? sources.connections() : Metrics::Connections{};
  Append("attnd_connections", "Connections of gRPC clients that are open.",
         Number(connections.open), families);
  families->push_back(State("attnd_connections_accepted_total", "Connections that were accepted.",
                            {{{}, Number(connections.accepted)}}, MetricType::Counter));
  families->push_back(State("attnd_connections_refused_total",
                            "Connections that were closed at once because of a limit.",
                            {{{}, Number(connections.refused)}}, MetricType::Counter));
  families->push_back(
      State("attnd_connections_cut_off_total",
            "Connections that were closed for what they sent; the log has the reason.",
            {{{}, Number(connections.cut_off)}}, MetricType::Counter));
}

void AppendStuck(const Metrics::Sources& sources, Families* families) {
  Rows rows;
  for (const auto& [part, seconds] : sources.stuck ? sources.stuck() : Metrics::Stuck{}) {
    rows.push_back({{{"part", part}}, seconds});
  }
  families->push_back(State("attnd_stuck_seconds",
                            "How long a part of the server has made no progress; 0: it works.",
                            rows));
}

}  // namespace

void AppendStates(const Metrics::Sources& sources, const std::vector<std::string>& devices,
                  std::vector<MetricFamily>* families) {
  AppendQueue(sources, families);
  AppendMemory(sources, devices, families);
  AppendDevices(sources, devices, families);
  AppendConnections(sources, families);
  AppendStuck(sources, families);
  families->push_back(State("attnd_log_lines_dropped_total",
                            "Log lines lost because standard error was not read in time.",
                            {{{}, Number(LogLinesDropped())}}, MetricType::Counter));
  AppendProcess(families);
}

}  // namespace attnd
