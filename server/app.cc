#include "server/app.h"

#include <google/protobuf/stubs/logging.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/engine/devices.h"
#include "kernels/method/registry.h"
#include "server/config_device.h"
#include "server/log.h"
#include "server/process.h"
#include "server/thread.h"

namespace attnd {
namespace {

// The methods whose calls have no time limit of the server.
constexpr const char* kStreams[] = {
    "/attn.v1.AttentionService/Run", "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"};

// By a rename, so that a reader never sees a part of it.
absl::Status WritePorts(const std::string& path, int grpc_port, int http_port) {
  const std::string draft = path + ".new";
  std::ofstream file(draft);
  file << "{\"grpc\":" << grpc_port << ",\"http\":" << http_port << "}\n";
  file.close();
  if (file.fail() || std::rename(draft.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot write ", path));
  }
  return absl::OkStatus();
}

// Kept for the next request however long nothing runs.
constexpr int64_t kIdleBytes = int64_t{256} << 20;

void LeaveStuck() {
  FlushLog(std::chrono::milliseconds(500));
  _exit(3);  // the code that --help documents
}

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// The budget of a device: its memory less what its pool retains. Null: the device has no memory of
// its own, or of unknown size.
std::unique_ptr<Budget> NewBudgetOf(Device& device) {
  const DeviceInfo& info = device.info();
  if (info.has_host_memory || info.memory_bytes == 0) return nullptr;
  return std::make_unique<Budget>(
      std::max(info.memory_bytes - device.memory().retain_bytes(), info.memory_bytes / 2));
}

void LogSelfTest(const std::string& device, const SelfTestReport& report) {
  if (report.rows.empty()) {
    if (device.starts_with("cuda:")) {
      Log(LogLevel::kInfo, "not proven (--self-test=false): no library is used",
          {{"device", device}});
    }
    return;
  }
  int compared = 0, failed = 0;
  for (const SelfTestRow& row : report.rows) {
    if (!row.is_declined) ++compared;
    if (!row.failure.empty()) ++failed;
  }
  const std::string agree = absl::StrCat(compared - failed, " of ", compared);
  if (report.cached_from.empty()) {
    Log(LogLevel::kInfo, "self-test",
        {{"device", device}, {"agree", agree}, {"seconds", absl::StrCat(report.seconds)}});
  } else {
    Log(LogLevel::kInfo, "self-test of an earlier start, --self-test=fresh runs it again",
        {{"device", device}, {"agree", agree}, {"at", report.cached_from}});
  }
}

}  // namespace

App::App(const Config& config)
    : config_(config),
      health_({kServiceName}),
      reflection_(
          {kServiceName, "grpc.health.v1.Health", kReflectionServices[0], kReflectionServices[1]}),
      streams_({.total = config.connections.max_streams,
                .per_connection = config.connections.max_streams_per_connection},
               &clock_) {}

absl::StatusOr<std::unique_ptr<App>> App::Start(const Config& config) {
  // It would log a line for every string that is not UTF-8; the caller gets an error instead.
  google::protobuf::SetLogHandler(nullptr);
  if (!config.ports_file.empty()) std::remove(config.ports_file.c_str());
  std::unique_ptr<App> app(new App(config));
  ATTND_RETURN_IF_ERROR(app->Build());
  ATTND_RETURN_IF_ERROR(app->Listen());
  app->LogStart();
  return app;
}

absl::Status App::Build() {
  DeviceOptions options{.cpu = {.threads = config_.threads, .isa = config_.isa}};
  SetDevices(config_.device, &options);
  options.proof = ProofOf(config_.self_test);
  options.cache_folder = CacheFolder(config_.cache_folder);
  options.version = Version();
  options.cuda.warn = [](const std::string& line) { Log(LogLevel::kWarning, line); };
  memory_ = SplitMemory(UsableMemoryBytes(), config_.budget_bytes, options.cpu.retain_bytes);
  options.cpu.retain_bytes = memory_.retained_bytes;
  absl::StatusOr<Devices> devices = NewDevices(options);
  ATTND_RETURN_IF_ERROR(devices.status());
  note_ = devices->note;
  cache_note_ = devices->cache_note;
  unusable_ = std::move(devices->unusable);
  self_tests_ = std::move(devices->self_tests);
  engine_ = std::make_shared<Engine>(std::move(devices->list),
                                     EngineOptions{.host_retain_bytes = memory_.retained_bytes});
  self_tests_.resize(engine_->devices());
  std::vector<DeviceInfo> described;
  for (size_t i = 0; i < engine_->devices(); ++i) described.push_back(engine_->device(i).info());

  Metrics::Options counted{
      .version = Version(), .isa = described[0].instruction_set, .lanes = config_.max_running};
  for (const DeviceInfo& device : described) {
    counted.devices.push_back({.name = device.name, .peak_flops = device.peak_flops});
    tensors_.devices.push_back(device.name);
  }
  for (const auto& method : AllMethods()) counted.methods.push_back(method->info().id);
  metrics_ = std::make_unique<Metrics>(counted);

  budget_ = std::make_unique<Budget>(memory_.budget_bytes);
  intake_ = std::make_unique<Intake>(Intake::Options{.max_waiting = config_.max_parked,
                                                     .undeclared_bytes = config_.undeclared_bytes},
                                     budget_.get(), &clock_);
  for (size_t i = 0; i < engine_->devices(); ++i) AddQueue(i);

  planner_ = std::make_unique<Planner>(Planner::Options{});

  tensors_.engine = engine_;
  for (const DeviceQueue& queue : queues_) {
    tensors_.batchers.push_back(queue.batcher.get());
    tensors_.lanes.push_back(queue.lanes.get());
    tensors_.device_budgets.push_back(queue.memory.get());
  }
  tensors_.planner = planner_.get();
  tensors_.predictions = &predictions_;
  tensors_.metrics = metrics_.get();
  tensors_.clock = &clock_;
  tensors_.budget = budget_.get();
  tensors_.intake = intake_.get();
  tensors_.max_message_bytes = config_.max_message_bytes;
  tensors_.max_priority = config_.max_priority;
  tensors_.max_request_seconds = config_.max_request_seconds;
  tensors_.undeclared_bytes = config_.undeclared_bytes;
  tensors_.logs_requests = config_.log.level == "debug";
  service_ = std::make_unique<Service>(
      &tensors_, ServerFacts{.version = Version(),
                             .devices = std::move(described),
                             .self_tests = self_tests_,
                             .note = note_,
                             .unusable_devices = unusable_,
                             .max_message_bytes = config_.max_message_bytes,
                             .budget_bytes = memory_.budget_bytes,
                             .max_queue_requests = config_.max_queue_requests});
  return absl::OkStatus();
}

Transport::Options App::TransportOptions() const {
  const ConnectionConfig& connections = config_.connections;
  RaiseFileLimit();
  const int total = FileLimitedConnections(connections.max_connections);
  if (total < connections.max_connections) {
    Log(LogLevel::kWarning, "the limit of open files allows fewer connections than configured",
        {{"connections", absl::StrCat(total)},
         {"configured", absl::StrCat(connections.max_connections)}});
  }
  const int per_client =
      connections.max_per_client > 0 ? connections.max_per_client : std::max(1, total / 2);
  // Calls that a connection can make beside its streams. OpenStreams refuses a stream too many with
  // a reason; this limit of HTTP/2 would only delay it.
  constexpr int kCalls = 128;
  return {.addresses = config_.grpc_addresses,
          .max_concurrent_streams = connections.max_streams_per_connection + kCalls,
          .buffer_bytes = memory_.buffer_bytes,
          .large_reads = config_.large_reads,
          .connections = {.total = total, .per_client = per_client},
          .max_connection_idle = Milliseconds(connections.idle_seconds),
          .max_connection_age = Milliseconds(connections.age_seconds),
          .keepalive_time = Milliseconds(connections.keepalive_seconds),
          .keepalive_timeout = Milliseconds(connections.keepalive_timeout_seconds),
          .spin = config_.spin,
          .call_began = [m = metrics_.get()](absl::string_view rpc) { m->CallBegan(rpc); },
          .call_ended = [m = metrics_.get()](absl::string_view rpc,
                                             absl::StatusCode code) { m->CallEnded(rpc, code); }};
}

absl::Status App::Listen() {
  metrics_->SetSources({.queue = [this] { return Depth(); },
                        .memory = [this] { return Memory(); },
                        .devices = [this] { return DeviceStates(); },
                        .parked = [this] { return intake_->waiting(); },
                        .connections = [this] { return CountConnections(); },
                        .stuck = [this] { return watchdog_->stuck_seconds(); },
                        .unusable_devices = unusable_});
  for (DeviceQueue& queue : queues_) ATTND_RETURN_IF_ERROR(queue.lanes->Start());
  ATTND_RETURN_IF_ERROR(planner_->Start());
  MethodTable methods;
  service_->AddMethods(&methods);
  health_.AddMethods(&methods);
  reflection_.AddMethods(&methods);
  for (const char* stream : kStreams) methods.at(stream) = streams_.Limit(methods.at(stream));
  std::vector<std::string> rpcs;
  for (const auto& [rpc, unused] : methods) rpcs.push_back(rpc);
  metrics_->SetRpcs(rpcs);
  absl::StatusOr<std::unique_ptr<Transport>> transport =
      Transport::Start(TransportOptions(), std::move(methods));
  if (!transport.ok()) return transport.status();
  transport_ = *std::move(transport);
  service_->runs().SetTransport(transport_.get());
  absl::StatusOr<std::thread> room = StartThread("room", [this] {
    while (budget_->WaitForRoom()) transport_->Post([this] { intake_->Serve(); });
  });
  ATTND_RETURN_IF_ERROR(room.status());
  room_ = *std::move(room);

  ATTND_RETURN_IF_ERROR(StartWatchdog());

  absl::StatusOr<std::unique_ptr<HttpServer>> http =
      HttpServer::Start(config_.http_address, {.metrics = [this] { return MetricsPage(); },
                                               .is_ready = [this] { return health_.is_serving(); },
                                               .health = [this] { return watchdog_->Check(); }});
  if (!http.ok()) return http.status();
  http_ = *std::move(http);
  if (config_.ports_file.empty()) return absl::OkStatus();
  return WritePorts(config_.ports_file, transport_->port(), http_->port());
}

absl::Status App::StartWatchdog() {
  poll_beat_ = std::make_unique<PollBeat>(transport_.get(), metrics_.get());
  watchdog_ = std::make_unique<Watchdog>(Watchdog::Options{
      .exit_after = config_.exit_when_stuck, .exit = LeaveStuck, .before_look = [this] {
        poll_beat_->Ask();
      }});
  watchdog_->Watch(poll_beat_->part());
  watchdog_->Watch(planner_->part());
  for (DeviceQueue& queue : queues_) queue.lanes->WatchBy(watchdog_.get());
  return watchdog_->Start();
}

App::~App() {
  http_.reset();
  if (watchdog_ != nullptr) watchdog_->Stop();
  StopServingRoom();
  if (transport_ != nullptr) transport_->StopServing(std::chrono::milliseconds(0));
  if (planner_ != nullptr) planner_->Close();
  CloseQueues();
  // Only after the lanes have ended: an answer on a closed queue aborts the process.
  transport_.reset();
}

void App::StopServingRoom() {
  if (budget_ != nullptr) budget_->Close();
  if (room_.joinable()) room_.join();
}

void App::Drain() {
  const auto delay = drain_delay();
  const auto work_ends = std::chrono::steady_clock::now() + delay + config_.drain_timeout;
  tensors_.draining.store(true);
  transport_->Post([this] {
    health_.SetServing(false);
    service_->runs().Drain();
  });
  Log(LogLevel::kInfo, "draining", {{"in_flight", absl::StrCat(tensors_.open.count())}});
  std::this_thread::sleep_for(delay);
  // The listeners stay open meanwhile, so that clients can query health and readiness.
  bool is_idle = false;
  for (TimePoint now = clock_.Now(); !is_idle && now < work_ends; now = clock_.Now()) {
    is_idle = tensors_.open.WaitNone(std::min(now + std::chrono::seconds(1), work_ends));
    GiveUpStalled();
  }
  if (!is_idle) {
    Log(LogLevel::kWarning, "drain timeout: cancelling what is in flight",
        {{"in_flight", absl::StrCat(tensors_.open.count())}});
  }
  transport_->Post([this] {
    health_.CloseWatches();
    reflection_.CloseStreams();
  });
  // Time to refuse the last calls; new work has been refused since the start of the drain.
  transport_->StopServing(std::chrono::milliseconds(is_idle ? 1000 : 200));
  planner_->Close();
  CloseQueues();
  StopServingRoom();
  watchdog_->Stop();
  http_.reset();
  transport_.reset();
  Log(LogLevel::kInfo, "drained");
}

void App::Tick() {
  try {
    for (const DeviceQueue& queue : queues_) static_cast<void>(queue.lanes->CheckDevice());
    GiveUpStalled();
  } catch (const std::bad_alloc&) {
    // No memory: the next Tick tries again.
  }
  engine_->TrimMemory(kIdleBytes);
  TrimIfIdle();
}

void App::GiveUpStalled() {
  transport_->CancelStalled(clock_.Now(), intake_->is_short());
  transport_->Post([this] { intake_->Sweep(); });
}

void App::TrimIfIdle() {
  const int64_t calls = transport_->calls();
  const bool is_idle = calls == calls_seen_ && tensors_.open.count() == 0;
  calls_seen_ = calls;
  idle_checks_ = is_idle ? idle_checks_ + 1 : 0;
  // The second time for memory that gRPC frees later.
  if (idle_checks_ != 1 && idle_checks_ != 4) return;
  malloc_trim(/*pad=*/0);
}

void App::AddQueue(size_t device) {
  DeviceQueue& queue = queues_.emplace_back();
  queue.memory = NewBudgetOf(engine_->device(device));
  queue.batcher = std::make_unique<Batcher>(
      Batcher::Options{.max_queue_requests = config_.max_queue_requests,
                       .max_batch_requests = config_.max_batch_requests,
                       .max_running = config_.max_running,
                       .predictions = &predictions_,
                       .refused = [m = metrics_.get()](Refusal r) { m->RecordRefusal(r); }},
      &clock_);
  queue.lanes = std::make_unique<Lanes>(
      Lane::Parts{
          .engine = engine_.get(),
          .batcher = queue.batcher.get(),
          .device = device,
          .metrics = metrics_.get(),
          .clock = &clock_,
          .predictions = &predictions_,
          .threads = engine_->device(device).info().threads,
          .max_request_seconds = config_.max_request_seconds,
          .sharing_runs = engine_->device(device).info().has_host_memory ? 1 : config_.max_running,
          .index = static_cast<int>(device) * config_.max_running,
          .device_failed = [this](const absl::Status& failure) { OnDeviceFailed(failure); }},
      config_.max_running);
}

void App::OnDeviceFailed(const absl::Status& failure) {
  if (has_failed_.exchange(true)) return;
  Log(LogLevel::kError, std::string(failure.message()));
  transport_->Post([this] { health_.SetServing(false); });
}

// Returns when the last batch is answered.
void App::CloseQueues() {
  for (DeviceQueue& queue : queues_) queue.batcher->Close();
  for (DeviceQueue& queue : queues_) queue.lanes->Join();
}

void App::LogStart() const {
  const bool is_wrong =
      !unusable_.empty() || std::ranges::any_of(self_tests_, [](const SelfTestReport& report) {
        return !report.failed.empty() || !report.failed_libraries.empty();
      });
  if (!note_.empty())
    Log(is_wrong ? LogLevel::kWarning : LogLevel::kInfo, "a device is missing, or a part of it",
        {{"reason", note_}});
  if (!cache_note_.empty())
    Log(LogLevel::kInfo, "the result of a self-test was not read or kept",
        {{"reason", cache_note_}});
  for (size_t i = 0; i < queues_.size(); ++i) {
    const DeviceInfo& device = engine_->device(i).info();
    LogSelfTest(device.name, self_tests_[i]);
    // What requests of the device are charged to.
    const Budget& budget = queues_[i].memory != nullptr ? *queues_[i].memory : *budget_;
    Log(LogLevel::kInfo, i == 0 ? absl::StrCat("attnd-server ", Version()) : "further device",
        {{"device", device.name},
         {"description", device.description},
         {"peak_gflops", absl::StrCat(static_cast<int64_t>(device.peak_flops / 1e9))},
         {"budget_bytes", absl::StrCat(budget.total())}});
  }
  Log(LogLevel::kInfo, "serving",
      {{"grpc", absl::StrJoin(transport_->addresses(), ",")}, {"http", http_->address()}});
}

}  // namespace attnd
