#include "server/transport.h"

#include <grpc/support/log.h>
#include <grpcpp/server_posix.h>
#include <pthread.h>

#include <algorithm>
#include <climits>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "kernels/core/status.h"
#include "proto/wire/bytes.h"
#include "server/line_limit.h"
#include "server/log.h"
#include "server/no_memory.h"

namespace attnd {
namespace {

// Longer than a client needs from one answer to its next call.
constexpr std::chrono::milliseconds kHold{200};
// Time for the notice of the stop to be sent before the last answers.
constexpr std::chrono::milliseconds kNoticeTime{100};

// Names and values of the metadata of a call: the usual 8 KiB, plus the head of a message.
constexpr int kMostMetadataBytes = 12 << 10;

// Messages of streams wait until the already waiting events are handled, but at most this many.
constexpr int kMostEventsBeforePump = 8;

// Logs errors of gRPC as errors, and its other lines for debugging.
void ForwardLog(gpr_log_func_args* args) {
  static LineLimit lines;
  const bool is_error = args->severity == GPR_LOG_SEVERITY_ERROR;
  if (is_error && !lines.Allow()) return;
  Log(is_error ? LogLevel::kError : LogLevel::kDebug, args->message, {{"from", "grpc"}});
}

int Milliseconds(std::chrono::milliseconds time) {
  return static_cast<int>(std::min<int64_t>(time.count(), INT_MAX));
}

void AddTimes(const Transport::Options& options, grpc::ServerBuilder* builder) {
  // Pings detect a peer that is gone without closing the connection, also between calls.
  if (options.keepalive_time.count() > 0) {
    builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(options.keepalive_time));
    builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                                Milliseconds(options.keepalive_timeout));
    builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  }
  // Each of these adds a filter to every call, so they are set only if requested.
  if (options.max_connection_idle.count() > 0) {
    builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                                Milliseconds(options.max_connection_idle));
  }
  if (options.max_connection_age.count() > 0) {
    builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                                Milliseconds(options.max_connection_age));
  }
}

// A posted function that must answer a call catches its exceptions itself.
void RunPosted(const std::function<void()>& f) noexcept {
  try {
    f();
  } catch (const std::exception&) {
    Log(LogLevel::kError, "a function posted to the polling thread threw an exception");
  }
}

}  // namespace

// Functions for the polling thread. One alarm delivers all that have been posted until it is
// handled.
class Transport::Mailbox final : public Event {
 public:
  explicit Mailbox(Transport* transport) : transport_(transport) {}
  void Put(std::function<void()> f) {
    // It may be an answer, which must not be lost.
    UntilMemory([&] { TryPut(f); });
  }
  void Run(bool) override {
    std::vector<std::function<void()>> posts;
    {
      const MutexLock lock(&mu_);
      posts.swap(posts_);
    }
    for (const std::function<void()>& f : posts) RunPosted(f);
    posts.clear();
    transport_->ArmMissing();
    transport_->AddLive(-1);
  }

 private:
  void TryPut(std::function<void()>& f) {
    const MutexLock lock(&mu_);
    posts_.emplace_back();
    posts_.back().swap(f);
    if (posts_.size() > 1) return;
    transport_->AddLive(1);
    // A time in the past: gRPC would round the current time up to a millisecond and leave the alarm
    // to its timer thread.
    alarm_.Set(transport_->queue_.get(), gpr_inf_past(GPR_CLOCK_MONOTONIC),
               static_cast<Event*>(this));
  }

  Transport* const transport_;
  Mutex mu_;
  std::vector<std::function<void()>> posts_ ATTND_GUARDED_BY(mu_);
  grpc::Alarm alarm_ ATTND_GUARDED_BY(mu_);
};

class Transport::Delayed final : public Event {
 public:
  Delayed(Transport* transport, std::function<void()> f) : transport_(transport), f_(std::move(f)) {
    transport_->AddLive(1);
  }
  ~Delayed() { transport_->AddLive(-1); }
  void Set(std::chrono::milliseconds delay) {
    const MutexLock lock(&mu_);
    const gpr_timespec due = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                          gpr_time_from_millis(delay.count(), GPR_TIMESPAN));
    alarm_.Set(transport_->queue_.get(), due, static_cast<Event*>(this));
  }
  void Run(bool) override {
    { MutexLock lock(&mu_); }  // waits until Set has returned
    RunPosted(f_);
    delete this;
  }

 private:
  Transport* const transport_;
  const std::function<void()> f_;
  Mutex mu_;
  grpc::Alarm alarm_ ATTND_GUARDED_BY(mu_);
};

Transport::Transport(const Options& options, MethodTable methods)
    : methods_(std::move(methods)),
      call_began_(options.call_began),
      call_ended_(options.call_ended),
      most_unannounced_(options.buffer_bytes > 0 ? options.buffer_bytes / 4 : INT64_MAX),
      connections_(options.connections, options.max_concurrent_streams,
                   [this](FloodWatch::Flood flood) {
                     Post([this, flood = std::move(flood)] { EndFlood(flood); });
                   }),
      mailbox_(std::make_unique<Mailbox>(this)) {}

absl::StatusOr<std::unique_ptr<Transport>> Transport::Start(const Options& options,
                                                            MethodTable methods) {
  gpr_set_log_function(ForwardLog);
  // Debian's Abseil checks for lock cycles at every lock, and gRPC takes dozens of locks for a
  // call.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  std::unique_ptr<Transport> transport(new Transport(options, std::move(methods)));
  transport->spin_ = options.spin;
  ATTND_RETURN_IF_ERROR(transport->Listen(options));
  ATTND_RETURN_IF_ERROR(transport->StartServer(options));
  for (int i = 0; i < options.armed_calls; ++i) std::make_shared<Rpc>(transport.get())->Arm();
  transport->thread_ = std::thread([t = transport.get()] { t->Poll(); });
  transport->acceptor_->Start();
  return transport;
}

absl::Status Transport::Listen(const Options& options) {
  absl::StatusOr<std::unique_ptr<Acceptor>> acceptor = Acceptor::Listen(
      {.addresses = options.addresses,
       .silence = options.silence,
       .take = [this](int fd) { grpc::AddInsecureChannelFromFd(server_.get(), fd); }},
      &connections_);
  if (!acceptor.ok()) return acceptor.status();
  acceptor_ = *std::move(acceptor);
  for (const Listener& listener : acceptor_->listeners()) {
    addresses_.push_back(listener.address);
    if (port_ == 0) port_ = listener.port;
  }
  return absl::OkStatus();
}

absl::Status Transport::StartServer(const Options& options) {
  grpc::ServerBuilder builder;
  // TensorCall checks the limit, where the call is also counted; gRPC would not check it earlier.
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_concurrent_streams);
  AddTimes(options, &builder);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMostMetadataBytes);
  if (options.large_reads) {
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kLargeFrameBytes);
  }
  // gRPC refuses compressed messages: they may unpack to any size, and floats hardly compress.
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  for (grpc_compression_algorithm algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  if (options.buffer_bytes > 0) {
    grpc::ResourceQuota quota("attnd");
    quota.Resize(static_cast<size_t>(options.buffer_bytes));
    builder.SetResourceQuota(quota);
  }
  builder.RegisterAsyncGenericService(&service_);
  queue_ = builder.AddCompletionQueue();
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) return absl::InternalError("gRPC does not start");
  return absl::OkStatus();
}

Transport::~Transport() {
  if (server_ != nullptr) StopServing(std::chrono::milliseconds(0));
  {
    const MutexLock lock(&mu_);
    while (live_ != 0) none_live_.Wait(&mu_);
  }
  if (queue_ != nullptr) queue_->Shutdown();
  if (thread_.joinable()) {
    thread_.join();
  } else if (queue_ != nullptr) {
    // No thread polls it: a queue must be empty when it is destroyed.
    void* tag = nullptr;
    bool ok = false;
    while (queue_->Next(&tag, &ok)) continue;
  }
}

void Transport::Post(std::function<void()> f) { mailbox_->Put(std::move(f)); }

void Transport::PostAfter(std::chrono::milliseconds delay, std::function<void()> f) {
  (new Delayed(this, std::move(f)))->Set(delay);
}

void Transport::StopServing(std::chrono::milliseconds timeout) {
  acceptor_->Stop();
  const auto now = std::chrono::steady_clock::now();
  if (timeout.count() > 0 && last_call_.load() > now - kHold) HoldCalls();
  server_->Shutdown(std::chrono::system_clock::now() + timeout);
}

void Transport::HoldCalls() {
  Post([this] { holds_ = true; });
  std::this_thread::sleep_for(kHold);
  PostAfter(kNoticeTime, [this] { ReleaseCalls(); });
}

void Transport::ReleaseCalls() {
  holds_ = false;
  for (const std::shared_ptr<Rpc>& rpc : std::exchange(held_, {})) rpc->Start();
}

void Transport::TakeCall(Rpc& rpc) {
  calls_.fetch_add(1, std::memory_order_relaxed);
  last_call_.store(rpc.started(), std::memory_order_relaxed);
  if (holds_) {
    held_.push_back(rpc.shared_from_this());
  } else {
    rpc.Start();
  }
}

void Transport::Poll() {
  pthread_setname_np(pthread_self(), "transport");
  void* tag = nullptr;
  bool ok = false;
  while (Next(&tag, &ok)) static_cast<Event*>(tag)->Run(ok);
}

bool Transport::Next(void** tag, bool* ok) {
  const gpr_timespec past = gpr_inf_past(GPR_CLOCK_MONOTONIC);
  const auto spin_until = std::chrono::steady_clock::now() + spin_;
  while (!to_pump_.empty() || spin_.count() > 0) {
    switch (queue_->AsyncNext(tag, ok, past)) {
      case grpc::CompletionQueue::GOT_EVENT:
        if (!to_pump_.empty() && ++events_before_pump_ == kMostEventsBeforePump) PumpAll();
        return true;
      case grpc::CompletionQueue::SHUTDOWN:
        return false;
      case grpc::CompletionQueue::TIMEOUT:
        PumpAll();
        break;
    }
    if (std::chrono::steady_clock::now() >= spin_until) break;
  }
  return queue_->Next(tag, ok);
}

void Transport::ArmAnother() noexcept {
  to_arm_ += 1;
  ArmMissing();
}

void Transport::ArmMissing() noexcept {
  for (; to_arm_ > 0; --to_arm_) {
    try {
      std::make_shared<Rpc>(this)->Arm();
    } catch (const std::bad_alloc&) {
      return;
    }
  }
}

void Transport::CallBegan(const std::string* rpc) const {
  if (call_began_) call_began_(*rpc);
}

void Transport::CallEnded(const std::string* rpc, absl::StatusCode code) const {
  if (call_ended_) call_ended_(rpc == nullptr ? absl::string_view() : *rpc, code);
}

void Transport::Settle(std::chrono::milliseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  // The answer of a client that does not read stays until it is overdue.
  while (leaving_.load() > 0 && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Transport::PumpSoon(std::shared_ptr<Rpc> rpc) { to_pump_.push_back(std::move(rpc)); }

void Transport::PumpAll() {
  events_before_pump_ = 0;
  for (const std::shared_ptr<Rpc>& rpc : std::exchange(to_pump_, {})) rpc->PumpNow();
}

const MethodTable::value_type* Transport::Find(const std::string& method) const {
  const auto found = methods_.find(method);
  return found == methods_.end() ? nullptr : &*found;
}

int Transport::open_calls() const {
  const MutexLock lock(&mu_);
  return static_cast<int>(calls_alive_.size());
}

std::vector<std::shared_ptr<Rpc>> Transport::OpenCalls() {
  std::vector<std::shared_ptr<Rpc>> calls;
  const MutexLock lock(&mu_);
  calls.reserve(calls_alive_.size());
  // Skips calls without a reference: their destructors wait for the lock.
  for (Rpc* rpc : calls_alive_) {
    if (std::shared_ptr<Rpc> call = rpc->weak_from_this().lock()) calls.push_back(std::move(call));
  }
  return calls;
}

void Transport::CancelStalled(TimePoint now, bool is_short) {
  connections_.Sweep();
  for (const std::shared_ptr<Rpc>& call : OpenCalls()) call->CancelIfStalled(now, is_short);
  Post([this, now, is_short] { GiveUpUnannounced(now, is_short); });
}

void Transport::AddCall(Rpc* rpc) {
  const MutexLock lock(&mu_);
  calls_alive_.insert(rpc);
}

void Transport::RemoveCall(Rpc* rpc) {
  const MutexLock lock(&mu_);
  calls_alive_.erase(rpc);
  live_ -= 1;
  if (live_ == 0) none_live_.NotifyAll();
}

void Transport::AddLive(int change) {
  const MutexLock lock(&mu_);
  live_ += change;
  if (live_ == 0) none_live_.NotifyAll();
}

}  // namespace attnd
