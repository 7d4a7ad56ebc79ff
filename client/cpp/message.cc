#include "message.h"

#include <climits>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "attn/v1/attention.pb.h"
#include "kernels/core/status.h"
#include "proto/wire/bytes.h"
#include "proto/wire/codec.h"
#include "proto/wire/scratch.h"

namespace attnd::client {
namespace {

constexpr int64_t kMostPayloadBytes = INT_MAX - 16;  // protobuf reads no more
// The head of messages from kLargeBytes up is also sent as metadata, if it has kMostHeadBytes at
// most: servers ignore longer ones.
constexpr size_t kLargeBytes = 256 << 10, kMostHeadBytes = 2 << 10;

template <class... Args>
absl::Status Invalid(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat("request: ", args...));
}
absl::Status BadReply(absl::string_view what) {
  return absl::InternalError(absl::StrCat("reply: ", what));
}

// Bytes of a tensor; -1 when the shape is invalid, or larger than a message can carry.
int64_t BytesOf(const google::protobuf::RepeatedField<int64_t>& shape, int64_t element_bytes) {
  int64_t bytes = element_bytes;
  bool is_empty = false;
  for (const int64_t n : shape) {
    if (n < 0) return -1;
    is_empty = is_empty || n == 0;
    if (n > 0 && bytes > kMostPayloadBytes / n) return -1;
    if (n > 0) bytes *= n;
  }
  return is_empty ? 0 : bytes;
}

// The index of the payload of `tensor`, which is added unless it is there.
uint32_t PayloadIndex(const Tensor& tensor, size_t bytes, Loan* loan,
                      std::vector<Payload>* payloads) {
  for (size_t i = 0; i < payloads->size(); ++i) {
    const Payload& known = (*payloads)[i];
    if (known.data == tensor.data && known.bytes == bytes) return static_cast<uint32_t>(i);
  }
  std::shared_ptr<void> owner = std::const_pointer_cast<void>(tensor.owner);
  if (owner == nullptr && bytes >= kWrapBytes) owner = loan->Lend();
  payloads->push_back({.data = tensor.data, .bytes = bytes, .owner = std::move(owner)});
  return static_cast<uint32_t>(payloads->size() - 1);
}

// Everything but the payloads. `Head` is ForwardRequest or BackwardRequest.
template <class Head>
absl::Status Fill(const Request& request, Head* head, Loan* loan, std::vector<Payload>* payloads) {
  *head->mutable_method() = request.method;
  head->set_device(request.device);
  head->set_priority(request.priority);
  if constexpr (std::is_same_v<Head, attn::v1::BackwardRequest>) {
    // Servers that do not know the field serve requests without it.
    if (!request.deterministic) head->set_deterministic(false);
  }
  for (const Tensor& tensor : request.tensors) {
    attn::v1::Tensor* described = head->add_tensors();
    described->set_name(tensor.name);
    described->set_dtype(tensor.dtype);
    described->set_layout(tensor.layout);
    described->mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
    const int64_t element_bytes = ElementBytes(tensor.dtype);
    if (element_bytes == 0) {
      return Invalid(tensor.name, ".dtype must be one of attn.v1.DType, got ",
                     static_cast<int>(tensor.dtype));
    }
    const int64_t bytes = BytesOf(described->shape(), element_bytes);
    if (bytes < 0) {
      return Invalid(tensor.name, ".shape must have dimensions >= 0 and at most ",
                     kMostPayloadBytes, " bytes, got [", absl::StrJoin(tensor.shape, ","), "]");
    }
    if (bytes > 0 && tensor.data == nullptr) {
      return Invalid(tensor.name, ".data must not be null, got null for ", bytes, " bytes");
    }
    described->set_raw_index(PayloadIndex(tensor, static_cast<size_t>(bytes), loan, payloads));
  }
  return absl::OkStatus();
}

// `Head`: ForwardRequest or BackwardRequest, in which the tensors are described; it is `message` or
// a field of it.
template <class Whole, class Head>
absl::StatusOr<Message> Encode(const Request& request, Whole* message, Head* head) {
  Loan loan;
  std::vector<Payload> payloads;
  ATTND_RETURN_IF_ERROR(Fill(request, head, &loan, &payloads));
  std::string bytes = message->SerializeAsString(), description;
  size_t total = bytes.size();
  for (const Payload& payload : payloads) total += payload.bytes;
  if (total >= kLargeBytes && bytes.size() <= kMostHeadBytes) description = bytes;
  Message encoded(Join(std::move(bytes), payloads), loan);
  encoded.head = std::move(description);
  return encoded;
}

// `Head` is ForwardReply or BackwardReply. `memory` keeps what `raw` refers to.
template <class Head>
absl::StatusOr<Reply> Take(Head* head, std::vector<Spans> raw, std::shared_ptr<const void> memory) {
  std::vector<ReplyTensor> tensors;
  for (attn::v1::Tensor& described : *head->mutable_tensors()) {
    ReplyTensor& tensor = tensors.emplace_back();
    tensor.name = std::move(*described.mutable_name());
    tensor.dtype = described.dtype();
    tensor.shape.assign(described.shape().begin(), described.shape().end());
    tensor.layout = described.layout();
    const int64_t element_bytes = ElementBytes(tensor.dtype);
    if (element_bytes == 0) return BadReply(absl::StrCat(tensor.name, " has an unknown dtype"));
    if (!described.has_raw_index() || described.raw_index() >= raw.size()) {
      return BadReply(absl::StrCat(tensor.name, " has no payload"));
    }
    tensor.pieces = raw[described.raw_index()];
    if (tensor.bytes() != BytesOf(described.shape(), element_bytes)) {
      return BadReply(absl::StrCat(tensor.name, " must fill its shape [",
                                   absl::StrJoin(tensor.shape, ","), "], got ", tensor.bytes(),
                                   " bytes"));
    }
  }
  std::vector<std::string> notes(head->notes().begin(), head->notes().end());
  return Reply(std::move(tensors), std::move(*head->mutable_stats()), std::move(notes),
               std::move(memory));
}

template <class Head>
absl::Status Split(const grpc::ByteBuffer& bytes, Head* head, std::vector<Spans>* raw,
                   std::shared_ptr<const void>* memory) {
  Received received;
  absl::Status status = Receive(bytes, &received);
  if (status.ok()) status = SplitMessage(received.pieces, head, raw);
  if (!status.ok()) return BadReply(status.message());
  *memory = std::move(received.owner);
  return absl::OkStatus();
}

template <class Head>
absl::StatusOr<Reply> DecodeAs(const grpc::ByteBuffer& bytes) {
  Scratch<Head> head;
  std::vector<Spans> raw;
  std::shared_ptr<const void> memory;
  ATTND_RETURN_IF_ERROR(Split(bytes, head.get(), &raw, &memory));
  return Take(head.get(), std::move(raw), std::move(memory));
}

}  // namespace

std::shared_ptr<void> Loan::Lend() {
  if (lent_ == nullptr) lent_ = std::make_shared<std::atomic<int>>(0);
  lent_->fetch_add(1, std::memory_order_relaxed);
  return {nullptr, [lent = lent_](void*) { lent->fetch_sub(1, std::memory_order_release); }};
}

absl::StatusOr<Message> EncodeRequest(Direction direction, const Request& request) {
  if (direction == Direction::kForward) {
    Scratch<attn::v1::ForwardRequest> message;
    return Encode(request, message.get(), message.get());
  }
  Scratch<attn::v1::BackwardRequest> message;
  return Encode(request, message.get(), message.get());
}

absl::StatusOr<Message> EncodeRun(const std::string& id, Direction direction,
                                  const Request& request) {
  Scratch<attn::v1::RunRequest> message;
  message->set_id(id);
  return direction == Direction::kForward
             ? Encode(request, message.get(), message->mutable_forward())
             : Encode(request, message.get(), message->mutable_backward());
}

grpc::ByteBuffer EncodeAnnouncement(const std::string& id, int64_t bytes) {
  attn::v1::RunRequest message;
  message.set_id(id);
  message.set_next_message_bytes(bytes);
  return Serialize(message);
}

absl::StatusOr<Reply> DecodeReply(Direction direction, const grpc::ByteBuffer& bytes) {
  return direction == Direction::kForward ? DecodeAs<attn::v1::ForwardReply>(bytes)
                                          : DecodeAs<attn::v1::BackwardReply>(bytes);
}

absl::StatusOr<RunAnswer> DecodeRun(const grpc::ByteBuffer& bytes) {
  Scratch<attn::v1::RunReply> scratch;
  attn::v1::RunReply& message = *scratch;
  std::vector<Spans> raw;
  std::shared_ptr<const void> memory;
  ATTND_RETURN_IF_ERROR(Split(bytes, &message, &raw, &memory));
  RunAnswer answer = {.id = message.id()};
  switch (message.content_case()) {
    case attn::v1::RunReply::kForward:
      answer.reply = Take(message.mutable_forward(), std::move(raw), std::move(memory));
      break;
    case attn::v1::RunReply::kBackward:
      answer.reply = Take(message.mutable_backward(), std::move(raw), std::move(memory));
      break;
    case attn::v1::RunReply::kError:
      if (message.error().code() == 0) return BadReply("error must have a code, got 0");
      answer.reply = absl::Status(static_cast<absl::StatusCode>(message.error().code()),
                                  message.error().message());
      answer.is_permanent = message.error().permanent();
      break;
    case attn::v1::RunReply::CONTENT_NOT_SET:
      return BadReply("content is required, got none");
  }
  return answer;
}

}  // namespace attnd::client
