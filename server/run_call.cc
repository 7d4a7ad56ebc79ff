#include "server/run_call.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "attn/v1/attention.pb.h"
#include "kernels/core/status.h"
#include "proto/wire/bytes.h"
#include "proto/wire/codec.h"
#include "proto/wire/scratch.h"
#include "server/no_memory.h"
#include "server/planner.h"
#include "server/reasons.h"
#include "server/refusals.h"
#include "server/reply.h"
#include "server/run_rules.h"
#include "server/tensor_request.h"

namespace attnd {
namespace {

using attn::v1::RunRequest;

// The largest message that may be sent without an announcement, and so is read without a share.
constexpr int64_t kUnannouncedBytes = Rpc::kUnannouncedBytes;
// Requests of one stream that are unanswered, or answered but not sent yet; beyond it the stream is
// not read.
constexpr size_t kMaxOpen = 256;
// Bound of the copied part of a reply: its head and the payloads that are too small to send in
// place.
constexpr int64_t kMostCopied = 32 << 10;

}  // namespace

class Runs::RunCall final : public Handler, private Intake::Reader {
 public:
  explicit RunCall(Runs* runs)
      : runs_(runs), context_(runs->context_), unsent_share_(*context_->budget->Take(0)) {}

  void OnHeaders(Rpc& rpc) override;
  void OnMessage(Rpc& rpc, const grpc::ByteBuffer* message) override;
  void OnFlood(Rpc& rpc) override;
  void OnOverdue(Rpc& rpc, const absl::Status& status) override;
  void OnSent(Rpc& rpc) override;
  void OnDone(Rpc& rpc, bool cancelled) override;
  void Drain();

 private:
  absl::Status Take(const grpc::ByteBuffer& message);
  void ParseLater(Received received);
  absl::Status TakeParsed(const RunRequest& request, Received received, std::vector<Spans> raw);
  void EndIfBad(const absl::Status& status);
  absl::Status Announce(const RunRequest& request);
  void Submit(const RunRequest& request, TensorRequest::Payloads payloads);
  void Answer(const std::string& id, const grpc::ByteBuffer& reply,
              std::shared_ptr<TensorRequest> request);
  void OnRoom(Budget::Share share) override;
  void OnOverdue(const absl::Status& status) override;
  int64_t arrived_bytes() const override { return rpc_->arrived_bytes(); }
  void End(const absl::Status& status);
  void Continue();

  Runs* const runs_;
  TensorContext* const context_;
  Rpc* rpc_ = nullptr;

  std::map<std::string, std::shared_ptr<TensorRequest>> open_;  // unanswered, by id
  size_t unsent_ = 0;                                           // answers in the outbox
  Budget::Share unsent_share_;                                  // for the copied parts of them
  bool has_room_ = true;                                        // unsent_share_ could grow
  std::string announced_id_;                                    // id of the announced message
  int64_t announced_bytes_ = 0;                                 // 0: none
  Budget::Share share_;                                         // of the announced message
  std::shared_ptr<RunControl> parsing_;                         // of the planner's job, if any
  bool is_reading_ = false, waits_for_room_ = false;
  bool is_done_ = false;
  // Set: nothing more is read, and the stream ends with it once all requests are answered.
  std::optional<absl::Status> end_;
};

void Runs::RunCall::OnHeaders(Rpc& rpc) {
  rpc_ = &rpc;
  runs_->calls_.insert(this);
  if (runs_->is_draining_ || context_->draining.load()) End(DrainingStatus());
  Continue();
}

void Runs::RunCall::OnMessage(Rpc&, const grpc::ByteBuffer* message) {
  is_reading_ = false;
  context_->intake->Leave(this);
  if (message == nullptr) {
    End(announced_bytes_ == 0 ? absl::OkStatus()
                              : absl::InvalidArgumentError(
                                    absl::StrCat("run: the announced message of id ",
                                                 Quoted(announced_id_), " is required, got none")));
  } else if (!end_.has_value()) {
    EndIfBad(Take(*message));
  }
  Continue();
}

// An error ends the stream: it breaks a rule of the stream, not of a request.
absl::Status Runs::RunCall::Take(const grpc::ByteBuffer& message) {
  const auto bytes = static_cast<int64_t>(message.Length());
  context_->metrics->AddReceivedBytes(bytes);
  const int64_t limit = announced_bytes_ > 0 ? announced_bytes_ : kUnannouncedBytes;
  if (bytes > limit) {
    return absl::InvalidArgumentError(
        announced_bytes_ > 0
            ? absl::StrCat("run: next_message_bytes must be >= the size of the next message (",
                           bytes, " bytes), got ", announced_bytes_)
            : absl::StrCat("run: a message above ", kUnannouncedBytes,
                           " bytes must be announced by next_message_bytes, got ", bytes));
  }
  Received received;
  Scratch<RunRequest> request;
  std::vector<Spans> raw;
  ATTND_RETURN_IF_ERROR(Receive(message, &received));
  const absl::Status status = SplitMessage(received.pieces, request.get(), &raw, kSmallHeadBytes);
  if (absl::IsOutOfRange(status)) {
    ParseLater(std::move(received));
    return absl::OkStatus();
  }
  ATTND_RETURN_IF_ERROR(status);
  return TakeParsed(*request, std::move(received), std::move(raw));
}

// Parses a large head on the planner's thread; nothing more is read until then.
void Runs::RunCall::ParseLater(Received received) {
  struct Parsed {
    Received received;
    Budget::Share share;
    RunRequest request;
    std::vector<Spans> raw;
    absl::Status status;
  };
  const auto parsed = std::make_shared<Parsed>();
  parsed->received = std::move(received);
  parsed->share = std::move(share_);
  const auto control = std::make_shared<RunControl>();
  Planner::Job job{.client = rpc_->client(),
                   .work = static_cast<int64_t>(kMaxHeadBytes),
                   .is_of_stream = true,
                   .control = control};
  // The transport outlives the planner's jobs.
  job.run = [this, parsed, control, call = rpc_->shared_from_this()] {
    parsed->status = Guarded([&] {
      if (control->stopped()) return DrainingStatus();
      return SplitMessage(parsed->received.pieces, &parsed->request, &parsed->raw);
    });
    UntilMemory([&] {
      runs_->transport_->Post([this, parsed, call] {
        call->Run([&] {
          parsing_ = nullptr;
          if (!end_.has_value()) {
            share_ = std::move(parsed->share);
            if (parsed->status.ok()) {
              parsed->status =
                  TakeParsed(parsed->request, std::move(parsed->received), std::move(parsed->raw));
            }
            EndIfBad(parsed->status);
          }
          Continue();
        });
      });
    });
  };
  if (const absl::Status status = context_->planner->Submit(job); status.ok()) {
    parsing_ = control;
  } else {
    context_->metrics->RecordRefusal(Refusal::kQueueFull);
    End(status);
  }
}

void Runs::RunCall::EndIfBad(const absl::Status& status) {
  if (status.ok()) return;
  context_->metrics->RecordRefusal(Refusal::kInvalid);
  End(status);
}

absl::Status Runs::RunCall::TakeParsed(const RunRequest& request, Received received,
                                       std::vector<Spans> raw) {
  ATTND_RETURN_IF_ERROR(CheckRun(request, !raw.empty()));
  if (announced_bytes_ > 0 && request.id() != announced_id_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "run: id must be the announced ", Quoted(announced_id_), ", got ", Quoted(request.id())));
  }
  if (open_.count(request.id()) > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "run: id must not be that of an unanswered request, got ", Quoted(request.id())));
  }
  if (request.content_case() == RunRequest::kNextMessageBytes) return Announce(request);
  announced_bytes_ = 0;
  Submit(request, {.raw = std::move(raw),
                   .owner = std::move(received.owner),
                   .message_bytes = received.bytes,
                   .share = std::move(share_)});
  return absl::OkStatus();
}

absl::Status Runs::RunCall::Announce(const RunRequest& request) {
  if (announced_bytes_ > 0) {
    return absl::InvalidArgumentError(absl::StrCat("run: the announced message of id ",
                                                   Quoted(announced_id_),
                                                   " is required, got another announcement"));
  }
  const int64_t bytes = request.next_message_bytes();
  if (bytes > context_->max_message_bytes) {
    return Permanent(absl::ResourceExhaustedError(absl::StrCat(
        "run: next_message_bytes must be <= ", context_->max_message_bytes, ", got ", bytes)));
  }
  announced_id_ = request.id();
  announced_bytes_ = bytes;
  waits_for_room_ = true;
  rpc_->Expect(bytes + Rpc::kWindowBytes);
  return context_->intake->Enter(
      this, {.message_bytes = bytes, .may_be_refused = false, .client = rpc_->client()});
}

void Runs::RunCall::OnRoom(Budget::Share share) {
  share_ = std::move(share);
  waits_for_room_ = false;
  Continue();
}

void Runs::RunCall::OnOverdue(const absl::Status& status) {
  context_->metrics->RecordRefusal(OverdueRefusal(status));
  End(status);
  Continue();
}

void Runs::RunCall::Submit(const RunRequest& request, TensorRequest::Payloads payloads) {
  const std::string& id = request.id();
  const Direction direction = request.has_forward() ? Direction::kForward : Direction::kBackward;
  const auto tensors = std::make_shared<TensorRequest>(
      context_, rpc_, direction, context_->clock->Now(),
      [id](Direction d, const std::string& reply) { return EncodeRunHead(id, d, reply); });
  // An empty share has no budget and could not grow.
  if (payloads.share.bytes() == 0) payloads.share = *context_->budget->Take(0);
  absl::Status status = tensors->Admit(request.has_forward() ? request.forward().device()
                                                             : request.backward().device());
  if (status.ok()) {
    open_[id] = tensors;
    // Posts from the lane's thread to the polling thread, which may send. The transport outlives
    // the lanes.
    auto done = [this, id, tensors, call = rpc_->shared_from_this()](
                    const absl::Status& answer, const grpc::ByteBuffer& reply) {
      // A lost answer would keep its stream open for ever.
      UntilMemory([&] {
        runs_->transport_->Post(
            [this, id, call, tensors, message = answer.ok() ? reply : ErrorReply(id, answer)] {
              const auto answer_it = [&] { Answer(id, message, tensors); };
              // A lambda with one pointer allocates nothing.
              call->Run([&answer_it] { answer_it(); });
            });
      });
    };
    status = request.has_forward()
                 ? tensors->Submit(request.forward(), std::move(payloads), std::move(done))
                 : tensors->Submit(request.backward(), std::move(payloads), std::move(done));
  }
  if (!status.ok()) {
    tensors->Refuse(status);
    Answer(id, ErrorReply(id, status), tensors);
  }
}

void Runs::RunCall::Answer(const std::string& id, const grpc::ByteBuffer& reply,
                           std::shared_ptr<TensorRequest> request) {
  open_.erase(id);
  if (!is_done_) {
    ++unsent_;
    // Payloads that are sent in place have their own shares.
    const int64_t copied = std::min<int64_t>(static_cast<int64_t>(reply.Length()), kMostCopied);
    has_room_ = unsent_share_.Resize(unsent_share_.bytes() + copied) && has_room_;
    rpc_->Send(reply, std::move(request));
  }
  Continue();
}

void Runs::RunCall::OnFlood(Rpc& rpc) {
  context_->metrics->RecordRefusal(Refusal::kInvalid);
  End(rpc.FloodStatus(absl::InvalidArgumentError(
      announced_bytes_ > 0
          ? absl::StrCat("run: next_message_bytes must be >= the size of the next message, got ",
                         announced_bytes_, " and more is arriving")
          : absl::StrCat("run: a message above ", kUnannouncedBytes,
                         " bytes must be announced by next_message_bytes, more is arriving"))));
  Continue();
}

void Runs::RunCall::OnOverdue(Rpc&, const absl::Status& status) {
  if (end_.has_value()) return;
  context_->metrics->RecordRefusal(Refusal::kBytes);
  End(status);
  Continue();
}

void Runs::RunCall::OnSent(Rpc&) {
  unsent_ = 0;
  (void)unsent_share_.Resize(0);
  has_room_ = true;
  Continue();
}

void Runs::RunCall::OnDone(Rpc&, bool) {
  is_done_ = true;
  unsent_ = 0;
  (void)unsent_share_.Resize(0);
  runs_->calls_.erase(this);
  context_->intake->Leave(this);
  share_ = {};
  // The answers remove the requests from open_ later, in posted functions.
  for (const auto& [id, request] : open_) request->Cancel();
  End(absl::CancelledError("run: the caller left"));
  Continue();
}

void Runs::RunCall::Drain() {
  End(DrainingStatus());
  Continue();
}

void Runs::RunCall::End(const absl::Status& status) {
  if (end_.has_value()) return;
  end_ = status;
  share_ = {};
  if (parsing_ != nullptr) parsing_->Cancel();
  context_->intake->Leave(this);
}

// Reads the next message or ends the stream, as the state requires.
void Runs::RunCall::Continue() {
  if (end_.has_value() && open_.empty()) return rpc_->Close(*end_);
  if (!end_.has_value() && !is_reading_ && parsing_ == nullptr && !waits_for_room_ && has_room_ &&
      open_.size() + unsent_ < kMaxOpen) {
    is_reading_ = true;
    if (announced_bytes_ > 0) return rpc_->Read();
    // The client may have sent a window ahead.
    rpc_->Expect(kUnannouncedBytes + Rpc::kWindowBytes);
    rpc_->ReadUnannounced();
  } else if (rpc_->expected() == 0) {
    rpc_->Expect(Rpc::kWindowBytes);
  }
}

std::unique_ptr<Handler> Runs::NewCall() { return std::make_unique<RunCall>(this); }

void Runs::Drain() {
  is_draining_ = true;
  // Drain only starts operations: no call is removed from the set during the loop.
  for (RunCall* call : calls_) call->Drain();
}

}  // namespace attnd
