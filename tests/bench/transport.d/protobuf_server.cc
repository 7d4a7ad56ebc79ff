#include <grpcpp/grpcpp.h>

#include <utility>

#include "attn/v1/attention.grpc.pb.h"
#include "tests/bench/transport.d/echo_server.h"

namespace attnd::bench {
namespace {

using attn::v1::AttentionService;
using attn::v1::ForwardReply;
using attn::v1::ForwardRequest;

// A service may not change its request; this one takes q's string all the same, which spares
// protobuf a copy that a real service would make.
void Echo(const ForwardRequest* request, ForwardReply* reply) {
  *reply->add_tensors() = request->tensors(0);
  reply->mutable_tensors(0)->set_name("out");
  reply->add_raw(std::move(*const_cast<ForwardRequest*>(request)->mutable_raw(0)));
}

class SyncService final : public AttentionService::Service {
  grpc::Status Forward(grpc::ServerContext*, const ForwardRequest* request,
                       ForwardReply* reply) override {
    Echo(request, reply);
    return grpc::Status::OK;
  }
};

class CallbackService final : public AttentionService::CallbackService {
  grpc::ServerUnaryReactor* Forward(grpc::CallbackServerContext* context,
                                    const ForwardRequest* request, ForwardReply* reply) override {
    Echo(request, reply);
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

template <class Service>
class ProtobufServer final : public EchoServer {
 public:
  ProtobufServer() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.SetMaxReceiveMessageSize(-1);
    builder.SetMaxSendMessageSize(-1);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
  }
  int port() const override { return port_; }

 private:
  int port_ = 0;
  Service service_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

std::unique_ptr<EchoServer> NewSyncServer(const ServerOptions&) {
  return std::make_unique<ProtobufServer<SyncService>>();
}
std::unique_ptr<EchoServer> NewCallbackServer(const ServerOptions&) {
  return std::make_unique<ProtobufServer<CallbackService>>();
}

}  // namespace attnd::bench
