// A server whose answers a test decides. It uses plain protobuf and none of this project's codec.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/sync_stream.h>

#include <functional>
#include <memory>
#include <string>

#include "attn/v1/attention.pb.h"

namespace attnd::client {

using ServerStream = grpc::ServerReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

class FakeServer {
 public:
  // Answers Forward, Backward and ServerInfo, on a gRPC thread. Returns the reply's bytes.
  using Unary = std::function<grpc::Status(grpc::ServerContext* context, const std::string& request,
                                           std::string* reply)>;
  using Run = std::function<grpc::Status(grpc::ServerContext* context, ServerStream* stream)>;

  // On a free port of the loopback, or at "unix:/path".
  explicit FakeServer(Unary unary, Run run = nullptr, const std::string& address = "127.0.0.1:0",
                      std::shared_ptr<grpc::ServerCredentials> credentials = nullptr);
  ~FakeServer();

  const std::string& target() const { return target_; }
  // Calls that run are cancelled.
  void Stop();

 private:
  class Service;

  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::string target_;
};

// A ForwardReply with the first tensor of the request as "out".
attn::v1::ForwardReply Echo(const attn::v1::ForwardRequest& request);
// Answers Forward with Echo.
grpc::Status EchoUnary(grpc::ServerContext* context, const std::string& request,
                       std::string* reply);

// Read the next message of a stream; false at its end.
bool ReadMessage(ServerStream* stream, attn::v1::RunRequest* request);
// Skips announcements.
bool ReadRequest(ServerStream* stream, attn::v1::RunRequest* request);
void WriteMessage(ServerStream* stream, const attn::v1::RunReply& reply);
attn::v1::RunReply EchoRun(const attn::v1::RunRequest& request);
attn::v1::RunReply Refuse(const attn::v1::RunRequest& request, grpc::StatusCode code,
                          const std::string& message, bool permanent);

}  // namespace attnd::client
