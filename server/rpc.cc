#include "server/rpc.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/no_memory.h"
#include "server/patience.h"
#include "server/reasons.h"
#include "server/transport.h"

namespace attnd {
namespace {

TimePoint ToSteady(gpr_timespec deadline) {
  if (gpr_time_cmp(deadline, gpr_inf_future(deadline.clock_type)) == 0) return TimePoint::max();
  const gpr_timespec left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
  // A deadline beyond a year counts as none, so that no sum overflows.
  constexpr int64_t kYear = int64_t{365} * 24 * 3600;
  const int64_t seconds = std::clamp<int64_t>(left.tv_sec, -kYear, kYear);
  return std::chrono::steady_clock::now() + std::chrono::seconds(seconds) +
         std::chrono::nanoseconds(left.tv_nsec);
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.raw_code()), std::string(status.message())};
}

void Handler::OnFlood(Rpc& rpc) {
  rpc.Close(rpc.FloodStatus(Permanent(absl::ResourceExhaustedError(
      absl::StrCat("message: size must be <= ", rpc.expected(), ", more is arriving")))));
}

void Handler::OnOverdue(Rpc& rpc, const absl::Status& status) { rpc.Close(status); }

Rpc::Alive::Alive(Transport* transport, Rpc* rpc) : transport_(transport), rpc_(rpc) {
  transport_->AddLive(1);
}
Rpc::Alive::~Alive() { transport_->RemoveCall(rpc_); }

Rpc::Rpc(Transport* transport) : alive_(transport, this), transport_(transport) {}
Rpc::~Rpc() = default;

void Rpc::Arm() {
  try {
    context_.AsyncNotifyWhenDone(done_.Hold(this));
    transport_->service_.RequestCall(&context_, &stream_, transport_->queue_.get(),
                                     transport_->queue_.get(), arrived_.Hold(this));
  } catch (const std::bad_alloc&) {
    // gRPC has not taken any of the tags.
    done_.Drop();
    arrived_.Drop();
    throw;
  }
}

void Rpc::OnArrived(bool ok) {
  if (!ok) {
    // The server stops. The tag of AsyncNotifyWhenDone is returned only for calls that started.
    done_.Drop();
    return;
  }
  transport_->ArmAnother();
  started_ = std::chrono::steady_clock::now();
  deadline_ = ToSteady(context_.raw_deadline());
  Guarded([this] {
    // Other threads see the call from now on, so only after it is complete.
    transport_->AddCall(this);
    connection_ = transport_->ConnectionOf(context_.peer());
    if (connection_ != nullptr) connection_->calls.fetch_add(1, std::memory_order_relaxed);
    Expect(kSmallBytes);
    transport_->TakeCall(*this);
  });
}

void Rpc::Start() {
  if (is_done_) return Finish(absl::CancelledError("request: the caller left"));
  Guarded([this] {
    const MethodTable::value_type* const entry = transport_->Find(method());
    if (entry == nullptr) {
      return Finish(absl::UnimplementedError(
          absl::StrCat("request: rpc must be one of this server, got ", Quoted(method()))));
    }
    name_ = &entry->first;
    transport_->CallBegan(name_);
    transport_->running_.store(name_, std::memory_order_relaxed);
    handler_ = entry->second();
    handler_->OnHeaders(*this);
  });
}

std::string Rpc::peer() const { return connection_ == nullptr ? "unknown" : connection_->peer; }

std::string Rpc::client() const { return connection_ == nullptr ? "unknown" : connection_->client; }

void Rpc::Expect(int64_t bytes) {
  if (connection_ != nullptr && !is_done_) {
    connection_->expected.fetch_add(bytes - expected_, std::memory_order_relaxed);
    expected_ = bytes;
  }
}

void Rpc::Settle(int64_t bytes) {
  if (connection_ != nullptr && expected_ > 0) {
    connection_->Settle(std::exchange(expected_, 0), bytes);
  }
}

bool Rpc::Expects(const Connection& connection) const {
  return connection_.get() == &connection && handler_ != nullptr && !answered_ && expected_ > 0;
}

void Rpc::ReportFlood(bool is_certain) {
  was_flooded_ = true;
  is_certain_ = is_certain;
  Guarded([this] { handler_->OnFlood(*this); });
}

absl::Status Rpc::FloodStatus(const absl::Status& status) const {
  if (is_certain_) return status;
  return absl::UnavailableError(
      "connection: more arrives on it than its calls expect, one of them may declare less than "
      "it sends, retry later");
}

void Rpc::Read(std::chrono::seconds patience) {
  if (patience != kNoLimit) {
    read_by_.store(std::chrono::steady_clock::now() + patience, std::memory_order_relaxed);
  }
  if (expected_ == 0) Expect(kSmallBytes);
  stream_.Read(&incoming_, read_.Hold(this));
}

void Rpc::ReadUnannounced() {
  unannounced_since_ = std::chrono::steady_clock::now();
  Read();
}

std::optional<TimePoint> Rpc::unannounced_since() const {
  return answered_ || is_done_ ? std::nullopt : unannounced_since_;
}

void Rpc::ReportOverdue(const absl::Status& status) {
  unannounced_since_.reset();
  Guarded([&] { handler_->OnOverdue(*this, status); });
}

void Rpc::OnRead(bool ok) {
  unannounced_since_.reset();
  read_by_.store(TimePoint::max(), std::memory_order_relaxed);
  // Moved out, so that the handler decides how long the received slices live.
  grpc::ByteBuffer message;
  if (ok) message.Swap(&incoming_);
  sends_no_more_ = !ok;
  // How much arrived for a call that was refused or cut off is unknown: count all that it expected.
  Settle(ok ? static_cast<int64_t>(message.Length()) : expected_);
  Guarded([&] { handler_->OnMessage(*this, ok ? &message : nullptr); });
}

void Rpc::Send(grpc::ByteBuffer message, std::shared_ptr<Departing> departing) {
  if (closing_.has_value() || broken_) return;
  outbox_.push_back({std::move(message), std::move(departing)});
  if (!writing_ && !std::exchange(will_pump_, true)) transport_->PumpSoon(shared_from_this());
}

void Rpc::Run(const std::function<void()>& f) noexcept { Guarded(f); }

void Rpc::PumpNow() {
  will_pump_ = false;
  Guarded([this] { Pump(); });
}

void Rpc::Close(const absl::Status& status) {
  if (!closing_.has_value()) closing_ = status;
  Pump();
}

void Rpc::Pump() {
  if (writing_) return;
  if (!outbox_.empty() && !broken_) {
    writing_ = true;
    StartsSending(outbox_.front().message);
    grpc::WriteOptions options;
    // Combines small messages that queue up. Not for the first Write, which carries the headers:
    // with the hint it would not end before they are sent.
    if (outbox_.size() > 1 && has_written_) options.set_buffer_hint();
    has_written_ = true;
    stream_.Write(outbox_.front().message, options, written_.Hold(this));
  } else if (closing_.has_value()) {
    Finish(*closing_);
  }
}

void Rpc::OnWritten(bool ok) {
  writing_ = false;
  broken_ = broken_ || !ok;
  StopsSending();
  const std::shared_ptr<Departing> departing = std::move(outbox_.front().departing);
  outbox_.pop_front();
  if (ok && departing != nullptr) departing->OnLeft();
  Guarded([this] { Pump(); });
  if (outbox_.empty() && !is_done_ && !closing_.has_value())
    Guarded([this] { handler_->OnSent(*this); });
}

void Rpc::Finish(const absl::Status& status) noexcept {
  if (answered_.exchange(true)) return;
  code_.store(status.code(), std::memory_order_relaxed);
  transport_->leaving_.fetch_add(1);
  try {
    if (IsPermanent(status)) context_.AddTrailingMetadata("grpc-retry-pushback-ms", "-1");
    stream_.Finish(ToGrpc(status), finished_.Hold(this));
  } catch (const std::bad_alloc&) {
    FinishShortly();
  }
}

// std::string allocates nothing for up to 15 characters.
void Rpc::FinishShortly() noexcept {
  stream_.Finish(grpc::Status(static_cast<grpc::StatusCode>(code()), "no memory left"),
                 finished_.Hold(this));
}

void Rpc::Reply(const grpc::ByteBuffer& reply) {
  if (answered_.exchange(true)) return;
  code_.store(absl::StatusCode::kOk, std::memory_order_relaxed);
  StartsSending(reply);
  transport_->leaving_.fetch_add(1);
  try {
    stream_.WriteAndFinish(reply, grpc::WriteOptions(), grpc::Status::OK, finished_.Hold(this));
  } catch (const std::bad_alloc&) {
    code_.store(absl::StatusCode::kResourceExhausted);
    FinishShortly();
  }
}

void Rpc::StartsSending(const grpc::ByteBuffer& message) {
  const TimePoint now = std::chrono::steady_clock::now();
  const auto bytes = static_cast<int64_t>(message.Length());
  if (connection_ != nullptr) connection_->Sends(bytes);
  send_by_if_short_.store(now + Patience(bytes, /*is_short=*/true), std::memory_order_relaxed);
  send_by_.store(now + Patience(bytes, /*is_short=*/false), std::memory_order_relaxed);
}

void Rpc::StopsSending() {
  send_by_.store(TimePoint::max(), std::memory_order_relaxed);
  send_by_if_short_.store(TimePoint::max(), std::memory_order_relaxed);
}

void Rpc::CancelIfStalled(TimePoint now, bool is_short) {
  const auto& send_by = is_short ? send_by_if_short_ : send_by_;
  const TimePoint limit =
      std::min(read_by_.load(std::memory_order_relaxed), send_by.load(std::memory_order_relaxed));
  if (limit < now) context_.TryCancel();
}

// A call that is refused unread may have up to a window of bytes on the way, which arrive after its
// end and must not look like a flood. Bounded for each connection, since refusals are free for the
// client.
void Rpc::ExpectLateBytes() {
  constexpr int kMostLateCalls = 16;
  constexpr std::chrono::milliseconds kLate{1000};
  if (connection_ == nullptr || expected_ == 0 || was_flooded_) return;
  if (connection_->late_calls >= kMostLateCalls) return;
  connection_->late_calls += 1;
  connection_->expected.fetch_add(kWindowBytes, std::memory_order_relaxed);
  transport_->PostAfter(kLate, [connection = connection_] {
    connection->late_calls -= 1;
    connection->Settle(kWindowBytes, kWindowBytes);
  });
}

void Rpc::OnDone(bool) {
  Guarded([this] { ExpectLateBytes(); });
  Settle(expected_);
  is_done_ = true;
  is_cancelled_ = context_.IsCancelled();
  if (handler_ != nullptr) Guarded([&] { handler_->OnDone(*this, is_cancelled_); });
  End();
}

void Rpc::OnFinished(bool ok) {
  StopsSending();
  has_finished_ = true;
  was_sent_ = ok;
  End();
}

// Acts on the second of OnDone and OnFinished, which come in any order.
void Rpc::End() {
  if (!is_done_ || !has_finished_) return;
  if (connection_ != nullptr) connection_->EndCall();
  const bool delivered = was_sent_ && !is_cancelled_;
  // A client that left before its message was given the status for a missing message: cancelled.
  const bool left = is_cancelled_ && sends_no_more_;
  if (!delivered && (left || code() == absl::StatusCode::kOk)) {
    code_.store(absl::StatusCode::kCancelled);
  }
  transport_->CallEnded(name_, code());
  if (handler_ != nullptr) Guarded([&] { handler_->OnEnd(*this, delivered); });
  transport_->leaving_.fetch_sub(1);
}

template <class F>
void Rpc::Guarded(const F& f) noexcept {
  transport_->running_.store(name_, std::memory_order_relaxed);
  const absl::Status status = attnd::Guarded([&] {
    f();
    return absl::OkStatus();
  });
  if (!status.ok()) Fail(status);
  transport_->running_.store(nullptr, std::memory_order_relaxed);
}

// Ends the call, after a message that is being written: gRPC accepts no other operation until then.
void Rpc::Fail(const absl::Status& status) noexcept {
  if (!closing_.has_value()) closing_ = status;
  while (outbox_.size() > (writing_ ? 1 : 0)) outbox_.pop_back();
  if (!writing_) Finish(*closing_);
}

}  // namespace attnd
