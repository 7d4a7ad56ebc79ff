#include "run_stream.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "channel.h"
#include "unary_call.h"

namespace attnd::client {
namespace {

// The protocol's bound of what needs no announcement.
constexpr size_t kMostUnannounced = 1 << 20;

// A request of which an announcement was written is late only once its message has followed.
constexpr std::chrono::milliseconds kLookAgain{10};
// A longer timeout counts as none.
constexpr std::chrono::hours kLongest{24 * 365 * 100};

bool IsRetryable(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsUnavailable(status);
}

absl::Status Late() {
  return absl::DeadlineExceededError("pipeline: the request was not answered in time");
}

}  // namespace

void* RunStream::Tag::Out() {
  ++stream_->tags_out_;
  return static_cast<Event*>(this);
}

void RunStream::Tag::Run(bool ok) {
  (stream_->*on_event_)(ok);
  stream_->EndIfOver();
}

std::shared_ptr<RunStream> RunStream::Open(std::shared_ptr<Core> core,
                                           const PipelineOptions& options) {
  const auto stream = std::make_shared<RunStream>(core, options);
  const auto stub = core->stub();
  EventQueue* events = core->Add(stream);
  stream->Start(stub.get(), events);
  return stream;
}

RunStream::RunStream(std::shared_ptr<Core> core, const PipelineOptions& options)
    : core_(std::move(core)), options_(options) {
  assert(options_.max_in_flight >= 1);
}

void RunStream::Start(grpc::GenericStub* stub, EventQueue* events) {
  const MutexLock lock(&mu_);
  if (events == nullptr) {
    status_ = absl::CancelledError("client: it is closed");
    is_finished_ = true;
    left_to_do_ = 0;
    return;
  }
  events_ = events;
  context_ = core_->NewContext(std::nullopt);
  stream_ = stub->PrepareCall(context_.get(), absl::StrCat("/", kService, "/Run"), events->tags());
  stream_->StartCall(started_.Out());
}

absl::Status RunStream::Submit(Direction direction, const Request& request, Callback done) {
  const std::string id = absl::StrCat(++last_id_);
  absl::StatusOr<Message> message = EncodeRun(id, direction, request);
  if (!message.ok()) return message.status();
  const Clock::time_point deadline = DeadlineOfNow();

  const MutexLock lock(&mu_);
  while (pending_.size() >= static_cast<size_t>(options_.max_in_flight) && !is_finished_ &&
         !is_closing_ && !core_->is_on_thread()) {
    if (deadline == Clock::time_point::max()) {
      changed_.Wait(&mu_);
    } else if (Clock::now() < deadline) {
      changed_.WaitUntil(&mu_, deadline);
    } else {
      return Late();
    }
  }
  if (is_closing_) return absl::FailedPreconditionError("pipeline: it is closed");
  if (is_finished_) return status_;
  pending_.emplace(
      id, Pending{.message = *std::move(message), .done = std::move(done), .deadline = deadline});
  SetAlarm(deadline);
  ++left_to_do_;
  outbox_.push_back(id);
  if (core_->is_on_thread()) {
    PumpSoon();
  } else {
    Pump();
  }
  return absl::OkStatus();
}

absl::Status RunStream::Close() {
  const MutexLock lock(&mu_);
  is_closing_ = true;
  changed_.NotifyAll();
  Pump();
  AbandonWithoutWaiters();
  while (left_to_do_ > 0) changed_.Wait(&mu_);
  return status_;
}

void RunStream::Cancel() {
  const MutexLock lock(&mu_);
  if (context_ != nullptr) context_->TryCancel();
}

void RunStream::OnStarted(bool ok) {
  const MutexLock lock(&mu_);
  if (!ok) return stream_->Finish(&outcome_, finished_.Out());
  can_write_ = true;
  stream_->Read(&incoming_, read_.Out());
  Pump();
}

void RunStream::OnRead(bool ok) {
  if (ok) {
    absl::StatusOr<RunAnswer> answer = DecodeRun(incoming_);
    incoming_.Clear();
    if (answer.ok()) {
      Take(*std::move(answer));
    } else {
      Fail(answer.status());
    }
  }
  const MutexLock lock(&mu_);
  if (ok) {
    stream_->Read(&incoming_, read_.Out());
  } else {
    stream_->Finish(&outcome_, finished_.Out());
  }
}

void RunStream::OnWritten(bool ok) {
  const MutexLock lock(&mu_);
  // gRPC may hand back a write after the end of its stream.
  can_write_ = ok && !is_finished_;
  Pump();
}

void RunStream::OnFinished(bool) {
  const MutexLock lock(&mu_);
  is_finished_ = true;
  can_write_ = false;
  if (alarm_at_ != Clock::time_point::max()) alarm_.Cancel();
  if (status_.ok() && !is_abandoned_) {
    status_ = FromGrpc(outcome_);
    if (status_.ok() && !half_closed_) {
      status_ = absl::UnavailableError("pipeline: the server ended the stream");
    }
  }
  changed_.NotifyAll();
}

void RunStream::OnAlarm(bool) {
  std::vector<Pending> late;
  {
    const MutexLock lock(&mu_);
    alarm_at_ = Clock::time_point::max();
    if (is_finished_) return;
    SetAlarm(TakeLate(&late));
    AbandonWithoutWaiters();
    changed_.NotifyAll();
  }
  for (Pending& pending : late) Deliver(std::move(pending), Late());
}

RunStream::Clock::time_point RunStream::DeadlineOfNow() const {
  const auto timeout = options_.timeout.has_value() ? options_.timeout : core_->options().timeout;
  if (!timeout.has_value() || *timeout > kLongest) return Clock::time_point::max();
  return Clock::now() + std::max(*timeout, std::chrono::nanoseconds(0));
}

void RunStream::SetAlarm(Clock::time_point when) {
  if (when >= alarm_at_) return;
  // Cancelling makes it fire at once; it is then set for the next request.
  if (alarm_at_ != Clock::time_point::max()) return alarm_.Cancel();
  alarm_at_ = when;
  const auto wait = std::max<Clock::duration>(when - Clock::now(), Clock::duration(0));
  alarm_.Set(
      events_->tags(),
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                   gpr_time_from_nanos(std::chrono::nanoseconds(wait).count(), GPR_TIMESPAN)),
      rung_.Out());
}

RunStream::Clock::time_point RunStream::TakeLate(std::vector<Pending>* late) {
  const Clock::time_point now = Clock::now();
  auto next = Clock::time_point::max();
  for (auto it = pending_.begin(); it != pending_.end();) {
    const auto current = it++;
    Pending& pending = current->second;
    if (pending.done == nullptr) continue;
    if (pending.deadline > now) {
      next = std::min(next, pending.deadline);
    } else if (current->first == announced_) {
      next = std::min(next, now + kLookAgain);
    } else {
      late->push_back(
          {.message = std::move(pending.message), .done = std::exchange(pending.done, nullptr)});
      if (!pending.is_sent) pending_.erase(current);
    }
  }
  return next;
}

void RunStream::AbandonWithoutWaiters() {
  if (!is_closing_ || pending_.empty() || context_ == nullptr) return;
  for (const auto& [_, pending] : pending_) {
    if (pending.done != nullptr) return;
  }
  is_abandoned_ = true;
  context_->TryCancel();
}

void RunStream::Pump() {
  while (can_write_ && !outbox_.empty()) {
    const std::string& id = outbox_.front();
    const auto found = pending_.find(id);
    if (found != pending_.end()) {
      const grpc::ByteBuffer& bytes = found->second.message.bytes;
      if (bytes.Length() > kMostUnannounced && announced_ != id) {
        announced_ = id;
        return Write(EncodeAnnouncement(id, static_cast<int64_t>(bytes.Length())));
      }
      announced_.clear();
      found->second.is_sent = true;
      Write(bytes);
    }
    outbox_.pop_front();
  }
  // Requests refused for lack of room are sent again, so no request may be open at the half-close.
  if (can_write_ && is_closing_ && pending_.empty() && !half_closed_) {
    half_closed_ = true;
    can_write_ = false;
    stream_->WritesDone(written_.Out());
  }
}

void RunStream::PumpSoon() {
  // Half of the requests in flight is enough: the server then works on one half while this thread
  // has the other.
  if (outbox_.size() * 2 >= pending_.size()) return Pump();
  if (outbox_.empty()) return;
  if (!can_write_ || std::exchange(will_pump_, true)) return;
  // Weak: as in ResendLater.
  events_->RunSoon([weak = weak_from_this()] {
    const auto stream = weak.lock();
    if (stream == nullptr) return;
    const MutexLock lock(&stream->mu_);
    stream->will_pump_ = false;
    stream->Pump();
  });
}

void RunStream::Write(const grpc::ByteBuffer& message) {
  can_write_ = false;
  grpc::WriteOptions options;
  // Small messages that queue up leave together. The outbox still has the one that is written.
  if (outbox_.size() > 1) options.set_buffer_hint();
  stream_->Write(message, options, written_.Out());
}

void RunStream::Take(RunAnswer answer) {
  Pending pending;
  {
    const MutexLock lock(&mu_);
    const auto found = pending_.find(answer.id);
    if (found == pending_.end() || !found->second.is_sent) {
      status_ = absl::InternalError(
          absl::StrCat("reply: id must be that of an unanswered request, got ", answer.id));
      context_->TryCancel();
      return;
    }
    if (MayPass(found->second, answer)) {
      found->second.is_sent = false;
      return ResendLater(answer.id, found->second.attempts++);
    }
    if (answer.reply.ok()) core_->stream_retries().Succeeded();
    pending = std::move(found->second);
    pending_.erase(found);
    changed_.NotifyAll();
    AbandonWithoutWaiters();
    PumpSoon();
  }
  if (pending.done != nullptr) Deliver(std::move(pending), std::move(answer.reply));
}

bool RunStream::MayPass(const Pending& pending, const RunAnswer& answer) {
  if (!IsRetryable(answer.reply.status()) || answer.is_permanent) return false;
  const auto bytes = static_cast<int64_t>(pending.message.bytes.Length());
  return core_->stream_retries().Refused(bytes) && pending.done != nullptr &&
         pending.attempts < core_->options().max_attempts;
}

void RunStream::ResendLater(const std::string& id, int attempts) {
  const double random = std::uniform_real_distribution<double>(0, 1)(random_);
  const auto when = Clock::now() + BackoffAfter(attempts, random);
  // Weak: what waits in the queue of a client that is closed must not keep the client.
  events_->RunWhen([when] { return Clock::now() >= when; },
                   [weak = weak_from_this(), id] {
                     const auto stream = weak.lock();
                     if (stream == nullptr) return;
                     const MutexLock lock(&stream->mu_);
                     stream->outbox_.push_back(id);
                     stream->Pump();
                   });
}

void RunStream::Fail(const absl::Status& status) {
  const MutexLock lock(&mu_);
  status_ = status;
  context_->TryCancel();
}

void RunStream::EndIfOver() {
  std::unordered_map<std::string, Pending> unanswered;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream;
  std::unique_ptr<grpc::ClientContext> context;
  absl::Status status;
  {
    const MutexLock lock(&mu_);
    if (--tags_out_ > 0 || !is_finished_) return;
    unanswered.swap(pending_);
    stream = std::move(stream_);
    context = std::move(context_);
    status = status_;
  }
  stream.reset();
  // Dropping its last reference makes gRPC release the requests, at once or when a write ends.
  context.reset();
  for (auto& [_, pending] : unanswered) {
    if (pending.done != nullptr) Deliver(std::move(pending), status);
  }
  Release();
}

void RunStream::Deliver(Pending pending, absl::StatusOr<Reply> reply) {
  // While a slice is held here, its loan cannot return.
  pending.message.bytes.Clear();
  const Loan& loan = pending.message.loan;
  if (loan.has_returned()) return RunCallback(std::move(pending.done), std::move(reply));
  events_->RunWhen([loan] { return loan.has_returned(); },
                   [this, done = std::move(pending.done), reply = std::move(reply)] {
                     RunCallback(done, reply);
                   });
}

void RunStream::RunCallback(Callback done, absl::StatusOr<Reply> reply) {
  done(std::move(reply));
  // Its captures are destroyed before Close returns.
  done = nullptr;
  Release();
}

void RunStream::Release() {
  {
    const MutexLock lock(&mu_);
    if (--left_to_do_ > 0) return;
    changed_.NotifyAll();
  }
  core_->Remove(this);
}

}  // namespace attnd::client
