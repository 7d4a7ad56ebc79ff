// Unary calls without tensors.
#pragma once

#include <grpcpp/grpcpp.h>

#include "absl/strings/str_cat.h"
#include "proto/wire/bytes.h"
#include "proto/wire/codec.h"
#include "server/rpc.h"

namespace attnd {

// Reads and parses the request, whose size is bounded.
template <class Request>
class SmallCall : public Handler {
 public:
  void OnHeaders(Rpc& rpc) override {
    rpc.Expect(kMaxHeadBytes);
    rpc.Read(Rpc::kSmallMessage);
  }
  void OnMessage(Rpc& rpc, const grpc::ByteBuffer* message) override {
    if (message == nullptr) {
      return rpc.Finish(
          absl::InvalidArgumentError("request: a whole message is required, got none"));
    }
    // A larger request without tensors is useless and would block the polling thread.
    if (message->Length() > kMaxHeadBytes) {
      return rpc.Finish(absl::InvalidArgumentError(
          absl::StrCat("message: size must be <= ", kMaxHeadBytes, ", got ", message->Length())));
    }
    Request request;
    if (absl::Status status = Parse(*message, &request); !status.ok()) return rpc.Finish(status);
    OnRequest(rpc, request);
  }

 private:
  // Answers, or passes the call on to be answered.
  virtual void OnRequest(Rpc& rpc, const Request& request) = 0;
};

}  // namespace attnd
