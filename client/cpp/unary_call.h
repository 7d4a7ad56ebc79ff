// One unary call.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "core.h"
#include "event_queue.h"
#include "kernels/core/mutex.h"
#include "message.h"

namespace attnd::client {

// The codes of absl and gRPC have the same numbers.
absl::Status FromGrpc(const grpc::Status& status);

// Ends when gRPC has answered and the request's loan has returned; its starter keeps it until then.
class UnaryCall final : public Activity, public Event {
 public:
  using Done = std::function<void(UnaryCall& call)>;

  UnaryCall(std::unique_ptr<grpc::ClientContext> context, Loan loan, Done done);

  // `events` run `done`, exactly once. It may drop the call.
  void Start(grpc::GenericStub* stub, const std::string& method, const grpc::ByteBuffer& request,
             EventQueue* events);
  // Any thread, any time.
  void Cancel() override;

  // The outcome, for `done`.
  absl::Status status() const { return FromGrpc(status_); }
  const grpc::ByteBuffer& reply() const { return reply_; }

  void Run(bool ok) override;

 private:
  void End();

  const Loan loan_;
  Done done_;
  EventQueue* events_ = nullptr;
  grpc::ByteBuffer reply_;
  grpc::Status status_;

  Mutex mu_;
  std::unique_ptr<grpc::ClientContext> context_ ATTND_GUARDED_BY(mu_);
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader_ ATTND_GUARDED_BY(mu_);
};

}  // namespace attnd::client
