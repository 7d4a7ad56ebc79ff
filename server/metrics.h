// The metrics of the server, for Prometheus.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/device/device.h"
#include "kernels/engine/self_test.h"
#include "kernels/method/info.h"
#include "server/batcher.h"
#include "server/task.h"

namespace attnd {

// Thread safe. Recording finds an existing handle, then updates a few atomics (a histogram takes
// the lock of its series, too); it never throws. Label values come from the registry, from enums
// and from the options, never from a client, so the number of series is bounded by 2 (methods + 1)
// (17 codes (1 + a histogram) + 6 histograms + 3 devices) + 2 methods + 18 rpcs + 18 devices + a
// constant. Histograms of a method appear with its first request, its counters exist from the
// start.
class Metrics {
 public:
  struct DeviceOptions {
    std::string name;       // "cpu"
    double peak_flops = 0;  // FLOP/s; 0: unknown, no efficiency
  };
  struct Options {
    std::string version, isa;
    std::vector<DeviceOptions> devices;  // in the order of Plan::device
    int lanes = 1;                       // of each device; labels "0", "1", ... over all of them
    std::vector<std::string> methods;    // ids of the registry
  };

  // Bytes of one pool at the moment of the scrape.
  struct PoolMemory {
    // These add up to the memory that the system has given for tensors.
    int64_t inputs = 0;     // of running batches
    int64_t workspace = 0;  // scratch memory and outputs of batches and replies
    int64_t retained = 0;   // freed, kept for reuse

    int64_t peak = 0;  // the most that inputs and workspace have taken together
  };
  struct DeviceMemory {
    PoolMemory pool;
    int64_t budget = 0;   // bytes that its requests may hold; 0: it has no budget of its own
    int64_t charged = 0;  // part of it that requests hold
  };
  struct Memory {
    std::vector<DeviceMemory> devices;
    // Integers and results of devices with other memory: device="host". Without: no such device.
    std::optional<PoolMemory> host;
    int64_t budget = 0;         // the byte budget
    int64_t charged = 0;        // part of it that requests hold
    int64_t pattern_cache = 0;  // host memory of patterns kept for reuse
  };

  struct Connections {
    int open = 0;
    int64_t accepted = 0, refused = 0, cut_off = 0;  // since the start
  };

  struct DeviceState {
    DeviceCounters counters;
    DeviceReadings readings;
    bool is_copied = false;  // its memory is not the host's
    const SelfTestReport* self_test = nullptr;
  };

  // How long each part of the process has been stuck; 0: it is not.
  using Stuck = std::vector<std::pair<std::string, double>>;

  // Called by Text, on its thread; null: reported as 0.
  struct Sources {
    std::function<Batcher::Depth()> queue;
    std::function<Memory()> memory;
    std::function<std::vector<DeviceState>()> devices;
    std::function<int()> parked;  // calls that wait for room to be read
    std::function<Connections()> connections;
    std::function<Stuck()> stuck;
    std::vector<std::string> unusable_devices;  // names
  };

  explicit Metrics(const Options& options);
  ~Metrics();

  // "/attn.v1.AttentionService/Forward", ... Once, before the first call.
  void SetRpcs(const std::vector<std::string>& rpcs);

  // Once, before the first Text. What the sources refer to outlives the last Text.
  void SetSources(Sources sources);

  // --- transport: every call ---
  // `rpc`: one of SetRpcs; anything else is counted as "unknown".
  void CallBegan(absl::string_view rpc) noexcept;
  void CallEnded(absl::string_view rpc, absl::StatusCode code) noexcept;

  // --- transport: one call each for every Forward or Backward ---
  // `method`: an id of the registry; anything else is counted as "unknown". Refused calls too.
  void RecordRequest(absl::string_view method, Direction direction, absl::StatusCode code,
                     double seconds) noexcept;
  void RecordAnswer(absl::string_view method, Direction direction, double seconds) noexcept;
  void AddInflight(int change) noexcept;  // +1 when a call's headers arrived, -1 when it ended
  void AddReceivedBytes(int64_t bytes) noexcept;
  void AddSentBytes(int64_t bytes) noexcept;

  // Called where a request is refused: by the batcher (through its option) for those that it
  // refused or dropped, by the lane for those that it dropped, by the transport for those before
  // them.
  void RecordRefusal(Refusal refusal) noexcept;

  // Seconds to check a request or an estimate and to predict its cost, whatever the outcome.
  void RecordPlan(absl::string_view method, Direction direction, double seconds) noexcept;
  // The wait of a queued request that got no result. RecordTask covers those with a result.
  void RecordQueued(absl::string_view method, Direction direction, double seconds) noexcept;

  // How long an event waited for the polling thread.
  void RecordPollDelay(double seconds) noexcept;

  // --- lane ---
  void RecordDispatch(Batcher::Reason reason) noexcept;
  // A computed request: its phases, tokens, FLOPs.
  void RecordTask(const Plan& plan, const Phases& phases) noexcept;

  struct BatchRun {
    absl::string_view method;
    Direction direction = Direction::kForward;
    int64_t requests = 0, tokens = 0, peak_workspace_bytes = 0;
    double flops = 0, compute_seconds = 0;
  };
  // Of which every request gets a RecordTask.
  void RecordBatch(int lane, const BatchRun& run) noexcept;
  // A run or a copy that a device failed (a run that a method failed, too), or for which it had no
  // memory. `device`: as Plan::device.
  enum class DeviceError : uint8_t { kFailed, kMemory };
  void RecordDeviceError(size_t device, DeviceError error) noexcept;
  // From taking a batch to its last answer.
  void AddBusySeconds(int lane, double seconds) noexcept;

  // Everything in the text format, version 0.0.4.
  absl::StatusOr<std::string> Text() const noexcept;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace attnd
