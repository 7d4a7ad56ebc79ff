#include "tests/client_cpp/fake_server.h"

#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/support/method_handler.h>

#include <chrono>
#include <utility>
#include <vector>

namespace attnd::client {
namespace {

std::string TextOf(const grpc::ByteBuffer& bytes) {
  std::vector<grpc::Slice> slices;
  std::string text;
  if (!bytes.Dump(&slices).ok()) return text;
  for (const grpc::Slice& slice : slices) {
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return text;
}

grpc::ByteBuffer BytesOf(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace

class FakeServer::Service final : public grpc::Service {
 public:
  Service(Unary unary, Run run) : unary_(std::move(unary)), run_(std::move(run)) {
    using grpc::ByteBuffer;
    namespace internal = grpc::internal;
    for (const char* path :
         {"/attn.v1.AttentionService/Forward", "/attn.v1.AttentionService/Backward",
          "/attn.v1.AttentionService/ServerInfo"}) {
      AddMethod(new internal::RpcServiceMethod(
          path, internal::RpcMethod::NORMAL_RPC,
          new internal::RpcMethodHandler<Service, ByteBuffer, ByteBuffer, ByteBuffer, ByteBuffer>(
              [](Service* self, grpc::ServerContext* context, const ByteBuffer* request,
                 ByteBuffer* reply) {
                std::string text;
                const grpc::Status status = self->unary_(context, TextOf(*request), &text);
                *reply = BytesOf(text);
                return status;
              },
              this)));
    }
    AddMethod(new internal::RpcServiceMethod(
        "/attn.v1.AttentionService/Run", internal::RpcMethod::BIDI_STREAMING,
        new internal::BidiStreamingHandler<Service, ByteBuffer, ByteBuffer>(
            [](Service* self, grpc::ServerContext* context, ServerStream* stream) {
              return self->run_(context, stream);
            },
            this)));
  }

 private:
  const Unary unary_;
  const Run run_;
};

FakeServer::FakeServer(Unary unary, Run run, const std::string& address,
                       std::shared_ptr<grpc::ServerCredentials> credentials)
    : service_(std::make_unique<Service>(std::move(unary), std::move(run))) {
  int port = 0;
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(-1);
  builder.AddListeningPort(
      address, credentials == nullptr ? grpc::InsecureServerCredentials() : credentials, &port);
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
  target_ = address == "127.0.0.1:0" ? "127.0.0.1:" + std::to_string(port) : address;
}

FakeServer::~FakeServer() { Stop(); }

void FakeServer::Stop() { server_->Shutdown(std::chrono::system_clock::now()); }

attn::v1::ForwardReply Echo(const attn::v1::ForwardRequest& request) {
  attn::v1::ForwardReply reply;
  *reply.add_tensors() = request.tensors(0);
  reply.mutable_tensors(0)->set_name("out");
  reply.mutable_tensors(0)->set_raw_index(0);
  reply.add_raw(request.raw(static_cast<int>(request.tensors(0).raw_index())));
  reply.mutable_stats()->set_device("fake");
  return reply;
}

grpc::Status EchoUnary(grpc::ServerContext*, const std::string& request, std::string* reply) {
  attn::v1::ForwardRequest parsed;
  if (!parsed.ParseFromString(request)) return {grpc::StatusCode::INVALID_ARGUMENT, "no protobuf"};
  *reply = Echo(parsed).SerializeAsString();
  return grpc::Status::OK;
}

bool ReadMessage(ServerStream* stream, attn::v1::RunRequest* request) {
  grpc::ByteBuffer bytes;
  return stream->Read(&bytes) && request->ParseFromString(TextOf(bytes));
}

bool ReadRequest(ServerStream* stream, attn::v1::RunRequest* request) {
  do {
    if (!ReadMessage(stream, request)) return false;
  } while (request->content_case() == attn::v1::RunRequest::kNextMessageBytes);
  return true;
}

void WriteMessage(ServerStream* stream, const attn::v1::RunReply& reply) {
  stream->Write(BytesOf(reply.SerializeAsString()));
}

attn::v1::RunReply EchoRun(const attn::v1::RunRequest& request) {
  attn::v1::ForwardRequest forward = request.forward();
  *forward.mutable_raw() = request.raw();
  attn::v1::RunReply reply;
  reply.set_id(request.id());
  *reply.mutable_forward() = Echo(forward);
  reply.mutable_raw()->Swap(reply.mutable_forward()->mutable_raw());
  return reply;
}

attn::v1::RunReply Refuse(const attn::v1::RunRequest& request, grpc::StatusCode code,
                          const std::string& message, bool permanent) {
  attn::v1::RunReply reply;
  reply.set_id(request.id());
  reply.mutable_error()->set_code(code);
  reply.mutable_error()->set_message(message);
  reply.mutable_error()->set_permanent(permanent);
  return reply;
}

}  // namespace attnd::client
