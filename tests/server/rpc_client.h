// Blocking calls of any method with bytes, for tests of the answers of a server.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/client_unary_call.h>
#include <grpcpp/impl/rpc_method.h>
#include <grpcpp/support/sync_stream.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace attnd {

inline grpc::ByteBuffer BytesOf(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

inline std::string TextOf(const grpc::ByteBuffer& bytes) {
  std::vector<grpc::Slice> slices;
  std::string text;
  if (!bytes.Valid() || !bytes.Dump(&slices).ok()) return text;
  for (const grpc::Slice& slice : slices) {
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return text;
}

class RpcClient {
 public:
  using Stream = grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

  explicit RpcClient(const std::string& target, grpc::ChannelArguments arguments = {}) {
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channel_ = grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
  }

  grpc::Status Call(const char* method, const std::string& request, std::string* reply,
                    grpc::ClientContext* context) const {
    const grpc::internal::RpcMethod rpc(method, grpc::internal::RpcMethod::NORMAL_RPC);
    grpc::ByteBuffer answer;
    const grpc::Status status =
        grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
            channel_.get(), rpc, context, BytesOf(request), &answer);
    *reply = TextOf(answer);
    return status;
  }
  grpc::Status Call(const char* method, const std::string& request, std::string* reply) const {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    return Call(method, request, reply, &context);
  }

  // The context outlives the stream.
  std::unique_ptr<Stream> Open(const char* method, grpc::ClientContext* context) const {
    const grpc::internal::RpcMethod rpc(method, grpc::internal::RpcMethod::BIDI_STREAMING);
    return std::unique_ptr<Stream>(
        grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
            channel_.get(), rpc, context));
  }

 private:
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace attnd
