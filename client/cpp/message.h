// Requests and replies as messages on the wire, without copies of their payloads.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "attnd/pipeline.h"
#include "attnd/reply.h"
#include "attnd/request.h"

namespace attnd::client {

// Counts the slices that gRPC still holds over memory that has no owner.
class Loan {
 public:
  // For a slice over such memory: held for as long as gRPC holds the slice.
  std::shared_ptr<void> Lend();
  // If true, the lender may write to the memory.
  bool has_returned() const {
    return lent_ == nullptr || lent_->load(std::memory_order_acquire) == 0;
  }

 private:
  std::shared_ptr<std::atomic<int>> lent_;
};

// Move-only. The moves swap `bytes`: a move of ByteBuffer copies, and the source would keep the
// loan.
struct Message {
  explicit Message(const grpc::ByteBuffer& b = {}, Loan l = {}) : bytes(b), loan(std::move(l)) {}
  Message(Message&& other) : loan(other.loan), head(std::move(other.head)) {
    bytes.Swap(&other.bytes);
  }
  Message& operator=(Message&& other) {
    bytes.Swap(&other.bytes);
    loan = other.loan;
    head = std::move(other.head);
    return *this;
  }

  grpc::ByteBuffer bytes;
  Loan loan;
  // All but the payloads, serialised, where that saves the server from reading them; else empty.
  std::string head;
};

// A ForwardRequest or BackwardRequest. Errors: INVALID_ARGUMENT "request: field rule, got value".
absl::StatusOr<Message> EncodeRequest(Direction direction, const Request& request);
// The same inside a RunRequest.
absl::StatusOr<Message> EncodeRun(const std::string& id, Direction direction,
                                  const Request& request);
// The RunRequest that announces a message of `bytes`.
grpc::ByteBuffer EncodeAnnouncement(const std::string& id, int64_t bytes);

// Errors: INTERNAL "reply: ...": the peer is no attnd server.
absl::StatusOr<Reply> DecodeReply(Direction direction, const grpc::ByteBuffer& bytes);

struct RunAnswer {
  std::string id;
  absl::StatusOr<Reply> reply = absl::UnknownError("reply: empty");
  bool is_permanent = false;  // of an error: sending it again cannot help
};
absl::StatusOr<RunAnswer> DecodeRun(const grpc::ByteBuffer& bytes);

}  // namespace attnd::client
