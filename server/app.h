// The server put together from its parts: start, serve, drain.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "server/batcher.h"
#include "server/budget.h"
#include "server/config.h"
#include "server/health.h"
#include "server/heartbeat.h"
#include "server/http.h"
#include "server/intake.h"
#include "server/lanes.h"
#include "server/memory_split.h"
#include "server/metrics.h"
#include "server/open_streams.h"
#include "server/planner.h"
#include "server/poll_beat.h"
#include "server/reflection.h"
#include "server/service.h"
#include "server/tensor_context.h"
#include "server/transport.h"

namespace attnd {

// Drain once before the destructor. Not thread safe.
class App {
 public:
  // Listens and serves when it returns. REQUIRES: the signals that the process waits for are
  // blocked, or a thread of gRPC receives them.
  static absl::StatusOr<std::unique_ptr<App>> Start(const Config& config);
  ~App();

  // Refuses new work, finishes what is in flight (or cancels it after the drain timeout) and ends
  // every thread of the service. Blocks.
  void Drain();
  // Of it, before it waits for what is in flight. Prometheus looks every 5 s (deploy/prometheus):
  // it must meet the count of a failure.
  std::chrono::milliseconds drain_delay() const {
    constexpr std::chrono::milliseconds kFailureShown{6000};
    return has_failed() ? std::max(config_.drain_delay, kFailureShown) : config_.drain_delay;
  }

  // Housekeeping, about once a second: looks whether devices have failed, and ends calls whose
  // messages or answers make no progress. Of the tensor memory kept for reuse, returns what no run
  // took since the last Tick, but 256 MiB. Returns free memory to the system once no call has
  // arrived since the last Tick. While requests arrive it keeps that memory: fresh pages cost more
  // than the copy into them.
  void Tick();

  // A device has failed for good: the server does not serve any more. Any thread.
  bool has_failed() const { return has_failed_.load(); }

 private:
  explicit App(const Config& config);
  absl::Status Build();
  absl::Status Listen();
  Transport::Options TransportOptions() const;
  absl::Status StartWatchdog();
  void GiveUpStalled();
  void TrimIfIdle();
  void StopServingRoom();
  absl::StatusOr<std::string> MetricsPage();
  void AddQueue(size_t device);
  void OnDeviceFailed(const absl::Status& failure);
  void CloseQueues();
  Batcher::Depth Depth() const;
  Metrics::Memory Memory() const;
  std::vector<Metrics::DeviceState> DeviceStates() const;
  Metrics::Connections CountConnections() const;
  void LogStart() const;

  const Config config_;
  MemorySplit memory_;
  SteadyClock clock_;
  std::string note_;                        // Devices::note
  std::vector<std::string> unusable_;       // Devices::unusable
  std::string cache_note_;                  // Devices::cache_note
  std::vector<SelfTestReport> self_tests_;  // of each device
  std::shared_ptr<Engine> engine_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<Budget> budget_;
  std::unique_ptr<Intake> intake_;
  Predictions predictions_{&clock_};
  // The queue of each device of the engine, and the lanes that empty it.
  struct DeviceQueue {
    // Null: the device has no memory of its own, or of unknown size.
    std::unique_ptr<Budget> memory;
    std::unique_ptr<Batcher> batcher;
    std::unique_ptr<Lanes> lanes;
  };
  std::vector<DeviceQueue> queues_;
  std::atomic<bool> has_failed_ = false;
  std::unique_ptr<Planner> planner_;
  TensorContext tensors_;
  Health health_;
  Reflection reflection_;
  OpenStreams streams_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<PollBeat> poll_beat_;
  std::unique_ptr<Watchdog> watchdog_;
  std::unique_ptr<HttpServer> http_;
  std::thread room_;  // has the intake serve waiting calls when bytes return to the budget
  int64_t calls_seen_ = 0;
  int64_t idle_checks_ = 0;  // since the last call
};

}  // namespace attnd
