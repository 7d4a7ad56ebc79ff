#include "server/health.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpc/health/v1/health.pb.h"
#include "proto/wire/bytes.h"
#include "server/reasons.h"
#include "server/refusals.h"

namespace attnd {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// Bound of a request, which holds the name of a service.
constexpr size_t kMostBytes = 4096;

grpc::ByteBuffer Message(HealthCheckResponse::ServingStatus status) {
  HealthCheckResponse response;
  response.set_status(status);
  return Serialize(response);
}

HealthCheckResponse::ServingStatus StatusOf(bool serving) {
  return serving ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

absl::Status ParseRequest(const grpc::ByteBuffer* message, HealthCheckRequest* request) {
  if (message == nullptr)
    return absl::InvalidArgumentError("request: a whole message is required, got none");
  if (message->Length() > kMostBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("message: size must be <= ", kMostBytes, ", got ", message->Length()));
  }
  return Parse(*message, request);
}

}  // namespace

class Health::CheckCall final : public Handler {
 public:
  explicit CheckCall(Health* health) : health_(health) {}
  void OnHeaders(Rpc& rpc) override { rpc.Read(Rpc::kSmallMessage); }
  void OnMessage(Rpc& rpc, const grpc::ByteBuffer* message) override {
    HealthCheckRequest request;
    if (absl::Status status = ParseRequest(message, &request); !status.ok()) {
      rpc.Finish(status);
    } else if (!health_->has_service(request.service())) {
      rpc.Finish(absl::NotFoundError(absl::StrCat(
          "health: service must be one of this server, got ", Quoted(request.service()))));
    } else {
      rpc.Reply(Message(StatusOf(health_->is_serving())));
    }
  }

 private:
  Health* const health_;
};

class Health::WatchCall final : public Handler {
 public:
  explicit WatchCall(Health* health) : health_(health) {}

  void OnHeaders(Rpc& rpc) override {
    rpc_ = &rpc;
    rpc.Read(Rpc::kSmallMessage);
  }
  void OnMessage(Rpc& rpc, const grpc::ByteBuffer* message) override {
    HealthCheckRequest request;
    if (absl::Status status = ParseRequest(message, &request); !status.ok()) {
      rpc.Close(status);
      return;
    }
    known_ = health_->has_service(request.service());
    rpc.Send(
        Message(known_ ? StatusOf(health_->is_serving()) : HealthCheckResponse::SERVICE_UNKNOWN));
    if (health_->closed_) {
      Close();
    } else if (!is_done_) {
      health_->watches_.insert(this);
    }
  }
  // Only the client or the stop of the server ends a watch.
  void OnDone(Rpc& rpc, bool) override {
    is_done_ = true;
    health_->watches_.erase(this);
    rpc.Close(absl::CancelledError("health: the watch ended"));
  }

  void SendStatus(bool serving) {
    if (known_) rpc_->Send(Message(StatusOf(serving)));
  }
  void Close() { rpc_->Close(StreamDrainingStatus()); }

 private:
  Health* const health_;
  Rpc* rpc_ = nullptr;
  bool known_ = false, is_done_ = false;
};

Health::Health(std::set<std::string> services)
    : services_([&] {
        services.insert("");
        return std::move(services);
      }()) {}

void Health::AddMethods(MethodTable* table) {
  (*table)["/grpc.health.v1.Health/Check"] = [this] { return std::make_unique<CheckCall>(this); };
  (*table)["/grpc.health.v1.Health/Watch"] = [this] { return std::make_unique<WatchCall>(this); };
}

void Health::SetServing(bool serving) {
  if (serving_.exchange(serving) == serving) return;
  for (WatchCall* watch : watches_) watch->SendStatus(serving);
}

void Health::CloseWatches() {
  closed_ = true;
  // Close only starts an operation: no watch is removed from the set during the loop.
  for (WatchCall* watch : watches_) watch->Close();
}

}  // namespace attnd
