#include "server/tensor_call.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"
#include "proto/wire/bytes.h"
#include "proto/wire/codec.h"
#include "proto/wire/scratch.h"
#include "server/plan_limits.h"
#include "server/tensor_request.h"

namespace attnd {
namespace {

constexpr char kSizeKey[] = "attnd-message-bytes", kHeadKey[] = "attnd-head-bin";
constexpr size_t kMostHeadBytes = 2 << 10;  // of kHeadKey; a longer value is ignored

// Keeps a message until its request is gathered.
struct Held {
  Received received;
  std::vector<Spans> raw;
  Budget::Share share;

  TensorRequest::Payloads TakePayloads() {
    return {.raw = std::move(raw),
            .owner = std::move(received.owner),
            .message_bytes = received.bytes,
            .share = std::move(share)};
  }
};

absl::Status Split(Held* held, google::protobuf::Message* head, size_t most_head) {
  return SplitMessage(held->received.pieces, head, &held->raw, most_head);
}

constexpr char kNoMessage[] = "request: a whole message is required, got none";

class TensorCall final : public Handler, private Intake::Reader {
 public:
  TensorCall(TensorContext* context, Direction direction)
      : context_(context), direction_(direction) {}

  void OnHeaders(Rpc& rpc) override;
  void OnMessage(Rpc& rpc, const grpc::ByteBuffer* message) override;
  void OnFlood(Rpc& rpc) override;
  void OnDone(Rpc& rpc, bool cancelled) override;
  void OnEnd(Rpc& rpc, bool delivered) override;

 private:
  absl::Status Admit(Rpc& rpc);
  bool ExpectMore(Rpc& rpc);
  absl::Status Submit(Rpc& rpc, const grpc::ByteBuffer& message);
  absl::Status CheckSize(int64_t message_bytes);
  template <class Request>
  absl::Status SubmitAs(Rpc& rpc, const grpc::ByteBuffer& message);
  template <class Request>
  absl::Status SubmitLater(Held held, TensorRequest::Done done);
  void OnRoom(Budget::Share share) override;
  void OnOverdue(const absl::Status& status) override;
  int64_t arrived_bytes() const override { return rpc_->arrived_bytes(); }
  void Refuse(const absl::Status& status);
  void RefuseUnread();

  TensorContext* const context_;
  const Direction direction_;
  Rpc* rpc_ = nullptr;
  std::optional<TensorRequest> request_;
  int64_t declared_bytes_ = Intake::kUndeclared;
  Budget::Share share_;
  bool is_waiting_ = false;  // for room to read
  bool is_refused_ = false, lacks_message_ = false, is_done_ = false, is_cancelled_ = false;
};

void TensorCall::OnHeaders(Rpc& rpc) {
  rpc_ = &rpc;
  request_.emplace(context_, &rpc, direction_, rpc.started());
  if (absl::Status status = Admit(rpc); !status.ok()) Refuse(status);
}

// Refusals are counted where they are made.
absl::Status TensorCall::Admit(Rpc& rpc) {
  ATTND_RETURN_IF_ERROR(request_->Admit());
  const auto& metadata = rpc.context().client_metadata();
  if (const auto found = metadata.find(kSizeKey); found != metadata.end()) {
    const absl::StatusOr<int64_t> bytes = ParseMessageBytes(
        {found->second.data(), found->second.size()}, context_->max_message_bytes);
    if (!bytes.ok()) {
      context_->metrics->RecordRefusal(absl::IsInvalidArgument(bytes.status()) ? Refusal::kInvalid
                                                                               : Refusal::kBytes);
      return bytes.status();
    }
    declared_bytes_ = *bytes;
  }
  const auto head = metadata.find(kHeadKey);
  if (head != metadata.end() && head->second.size() <= kMostHeadBytes) {
    ATTND_RETURN_IF_ERROR(request_->AdmitHead({head->second.data(), head->second.size()}));
  }
  rpc.Expect(declared_bytes_ == Intake::kUndeclared
                 ? std::min(context_->undeclared_bytes, context_->max_message_bytes)
                 : std::max(declared_bytes_, Rpc::kSmallBytes));
  is_waiting_ = true;
  absl::Status status = context_->intake->Enter(
      this, {.message_bytes = declared_bytes_, .may_be_refused = true, .client = rpc.client()});
  if (!status.ok()) context_->metrics->RecordRefusal(Refusal::kBytes);
  return status;
}

void TensorCall::OnRoom(Budget::Share share) {
  is_waiting_ = false;
  share_ = std::move(share);
  rpc_->Read();
}

void TensorCall::OnOverdue(const absl::Status& status) {
  context_->metrics->RecordRefusal(OverdueRefusal(status));
  Refuse(status);
}

// A message of unknown size takes more of the budget while it arrives.
bool TensorCall::ExpectMore(Rpc& rpc) {
  const int64_t more = std::min(2 * rpc.expected(), context_->max_message_bytes) - rpc.expected();
  if (more <= 0 || !share_.Resize(share_.bytes() + more)) return false;
  rpc.Expect(rpc.expected() + more);
  return true;
}

void TensorCall::OnFlood(Rpc& rpc) {
  // A call that is not read yet takes no more than its window.
  if (is_refused_ || is_waiting_) return;
  if (declared_bytes_ != Intake::kUndeclared) {
    context_->intake->Leave(this);
    context_->metrics->RecordRefusal(Refusal::kInvalid);
    Refuse(rpc.FloodStatus(absl::InvalidArgumentError(
        absl::StrCat("metadata: ", kSizeKey, " must be >= the size of the message, got ",
                     declared_bytes_, " and more is arriving"))));
  } else if (!ExpectMore(rpc)) {
    context_->intake->Leave(this);
    context_->intake->OnShortage();
    context_->metrics->RecordRefusal(Refusal::kBytes);
    Refuse(absl::ResourceExhaustedError(
        absl::StrCat("request: needs more than ", rpc.expected(),
                     " bytes, which are not free, declare its size and retry later")));
  }
}

void TensorCall::OnMessage(Rpc& rpc, const grpc::ByteBuffer* message) {
  context_->intake->Leave(this);
  if (is_refused_) return;
  if (message != nullptr) {
    if (absl::Status status = Submit(rpc, *message); !status.ok()) Refuse(status);
    return;
  }
  // The client has half-closed or left; OnDone shows which.
  lacks_message_ = true;
  share_ = {};
  rpc.Finish(absl::InvalidArgumentError(kNoMessage));
  if (is_done_) RefuseUnread();
}

absl::Status TensorCall::Submit(Rpc& rpc, const grpc::ByteBuffer& message) {
  const auto message_bytes = static_cast<int64_t>(message.Length());
  context_->metrics->AddReceivedBytes(message_bytes);
  ATTND_RETURN_IF_ERROR(CheckSize(message_bytes));
  return direction_ == Direction::kForward ? SubmitAs<attn::v1::ForwardRequest>(rpc, message)
                                           : SubmitAs<attn::v1::BackwardRequest>(rpc, message);
}

absl::Status TensorCall::CheckSize(int64_t message_bytes) {
  absl::Status status = CheckMessageSize(message_bytes, context_->max_message_bytes);
  if (!status.ok()) {
    context_->metrics->RecordRefusal(Refusal::kBytes);
    return status;
  }
  if (declared_bytes_ != Intake::kUndeclared && message_bytes > declared_bytes_) {
    context_->metrics->RecordRefusal(Refusal::kInvalid);
    return absl::InvalidArgumentError(
        absl::StrCat("metadata: ", kSizeKey, " must be >= the size of the message (", message_bytes,
                     " bytes), got ", declared_bytes_));
  }
  return absl::OkStatus();
}

template <class Request>
absl::Status TensorCall::SubmitAs(Rpc& rpc, const grpc::ByteBuffer& message) {
  TensorRequest::Done done = [call = rpc.shared_from_this()](const absl::Status& answer,
                                                             const grpc::ByteBuffer& reply) {
    answer.ok() ? call->Reply(reply) : call->Finish(answer);
  };
  Held held;
  absl::Status status = Receive(message, &held.received);
  held.share = std::move(share_);
  Scratch<Request> request;
  if (status.ok()) status = Split(&held, request.get(), kSmallHeadBytes);
  if (status.ok()) return request_->Submit(*request, held.TakePayloads(), std::move(done));
  if (absl::IsOutOfRange(status)) return SubmitLater<Request>(std::move(held), std::move(done));
  context_->metrics->RecordRefusal(Refusal::kInvalid);
  return status;
}

template <class Request>
absl::Status TensorCall::SubmitLater(Held held, TensorRequest::Done done) {
  const auto kept = std::make_shared<Held>(std::move(held));
  return request_->Later(kMaxHeadBytes, done, [this, kept, done]() -> absl::Status {
    Request request;
    absl::Status status = Split(kept.get(), &request, kMaxHeadBytes);
    if (status.ok()) return request_->Submit(request, kept->TakePayloads(), done);
    context_->metrics->RecordRefusal(Refusal::kInvalid);
    return status;
  });
}

void TensorCall::OnDone(Rpc& rpc, bool cancelled) {
  is_done_ = true;
  is_cancelled_ = cancelled;
  context_->intake->Leave(this);
  // No request: there was no memory for one.
  if (is_refused_ || !request_.has_value()) return;
  if (cancelled) request_->Cancel();
  if (is_waiting_) {
    rpc.Finish(absl::CancelledError("request: the caller left"));
    RefuseUnread();
  } else if (lacks_message_) {
    RefuseUnread();
  }
}

void TensorCall::OnEnd(Rpc& rpc, bool delivered) {
  if (request_.has_value()) request_->End(delivered, rpc.code());
}

// Called by the second of OnMessage without a message and OnDone, which come in any order.
void TensorCall::RefuseUnread() {
  if (!is_cancelled_) {
    return request_->Refuse(absl::InvalidArgumentError(kNoMessage), Refusal::kInvalid);
  }
  const absl::Status status =
      WhyCancelled(rpc_->started(), rpc_->deadline(), context_->clock->Now());
  request_->Refuse(status, RefusalOf(status));
}

void TensorCall::Refuse(const absl::Status& status) {
  is_refused_ = true;
  share_ = {};
  request_->Refuse(status);
  rpc_->Finish(status);
}

}  // namespace

std::unique_ptr<Handler> NewTensorCall(TensorContext* context, Direction direction) {
  return std::make_unique<TensorCall>(context, direction);
}

}  // namespace attnd
