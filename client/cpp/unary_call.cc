#include "unary_call.h"

#include <utility>

namespace attnd::client {

UnaryCall::UnaryCall(std::unique_ptr<grpc::ClientContext> context, Loan loan, Done done)
    : loan_(std::move(loan)), done_(std::move(done)), context_(std::move(context)) {}

void UnaryCall::Start(grpc::GenericStub* stub, const std::string& method,
                      const grpc::ByteBuffer& request, EventQueue* events) {
  const MutexLock lock(&mu_);
  events_ = events;
  reader_ = stub->PrepareUnaryCall(context_.get(), method, request, events->tags());
  reader_->StartCall();
  reader_->Finish(&reply_, &status_, static_cast<Event*>(this));
}

void UnaryCall::Cancel() {
  const MutexLock lock(&mu_);
  if (context_ != nullptr) context_->TryCancel();
}

void UnaryCall::Run(bool) {
  std::unique_ptr<grpc::ClientContext> context;
  {
    const MutexLock lock(&mu_);
    reader_.reset();
    context = std::move(context_);
  }
  // Dropping its last reference makes gRPC release the request, at once or when a write ends.
  context.reset();
  if (loan_.has_returned()) {
    End();
  } else {
    events_->RunWhen([this] { return loan_.has_returned(); }, [this] { End(); });
  }
}

void UnaryCall::End() {
  const Done done = std::move(done_);
  done(*this);
}

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace attnd::client
