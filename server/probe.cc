#include "server/probe.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/client_unary_call.h>
#include <grpcpp/impl/rpc_method.h>

#include <chrono>
#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "grpc/health/v1/health.pb.h"
#include "proto/wire/bytes.h"

namespace attnd {
namespace {

std::string TargetOf(absl::string_view address) {
  if (absl::ConsumePrefix(&address, "0.0.0.0:")) return absl::StrCat("127.0.0.1:", address);
  if (absl::ConsumePrefix(&address, "[::]:")) return absl::StrCat("[::1]:", address);
  return std::string(address);
}

}  // namespace

int Probe(const std::string& address) {
  using grpc::health::v1::HealthCheckResponse;
  const std::string target = TargetOf(address);
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto channel =
      grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(3));
  const grpc::internal::RpcMethod method("/grpc.health.v1.Health/Check",
                                         grpc::internal::RpcMethod::NORMAL_RPC);
  grpc::ByteBuffer answer;
  const grpc::Status status = grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
      channel.get(), method, &context, Serialize(grpc::health::v1::HealthCheckRequest()), &answer);
  HealthCheckResponse response;
  if (!status.ok() || !Parse(answer, &response).ok()) {
    std::printf("%s: %s\n", target.c_str(), status.error_message().c_str());
    return 1;
  }
  std::printf("%s: %s\n", target.c_str(),
              HealthCheckResponse::ServingStatus_Name(response.status()).c_str());
  return response.status() == HealthCheckResponse::SERVING ? 0 : 1;
}

}  // namespace attnd
