#include "channel.h"

#include <chrono>
#include <climits>
#include <fstream>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/bytes.h"
#include "retry.h"

namespace attnd::client {
namespace {

constexpr int kMostAttempts = 5;  // gRPC takes no more

// gRPC does the retries: it can tell which calls no server has seen, honours the server's pushback,
// and keeps references, not copies, of what it may have to send again. Run is not listed: RunStream
// repeats requests of a stream itself.
std::string RetryConfig(int max_attempts) {
  std::string names;
  for (const char* method : {"Forward", "Backward", "Estimate", "ListMethods", "ServerInfo"}) {
    absl::StrAppend(&names, names.empty() ? "" : ",", R"({"service":")", kService,
                    R"(","method":")", method, R"("})");
  }
  const auto seconds = [](std::chrono::milliseconds time) {
    return absl::StrCat(static_cast<double>(time.count()) / 1000, "s");
  };
  return absl::StrCat(R"({"methodConfig":[{"name":[)", names, R"(],"retryPolicy":{"maxAttempts":)",
                      max_attempts, R"(,"initialBackoff":")", seconds(kFirstBackoff),
                      R"(","maxBackoff":")", seconds(kMostBackoff), R"(","backoffMultiplier":2,)",
                      R"("retryableStatusCodes":["RESOURCE_EXHAUSTED","UNAVAILABLE"]}}],)",
                      R"("retryThrottling":{"maxTokens":)", kRetryTokens, R"(,"tokenRatio":)",
                      kTokensPerSuccess, "}}");
}

bool IsLocal(const std::string& target) {
  for (const char* prefix : {"unix:", "localhost:", "127.", "[::1]"}) {
    if (absl::StartsWith(target, prefix)) return true;
  }
  return false;
}

grpc::ChannelArguments Arguments(const ClientOptions& options) {
  grpc::ChannelArguments arguments;
  // The server states the limit of a message; the client has none.
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetMaxReceiveMessageSize(-1);
  // A dead peer is noticed during a call without a deadline. gRPC servers answer pings that come
  // more often than every 300 s with a closed connection.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 360'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  // A client made after the server started must not wait for an earlier client's backoff.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 5'000);
  if (IsLocal(options.target)) arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (has_large_reads) arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kLargeFrameBytes);
  if (options.max_attempts > 1) {
    arguments.SetServiceConfigJSON(RetryConfig(options.max_attempts));
    // A request above this size would be sent once only.
    arguments.SetInt(GRPC_ARG_PER_RPC_RETRY_BUFFER_SIZE, INT_MAX);
  }
  return arguments;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Credentials(
    const std::optional<std::string>& authorities) {
  if (!authorities.has_value()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions ssl;
  if (!authorities->empty()) {
    std::ifstream file(*authorities, std::ios::binary);
    ssl.pem_root_certs.assign(std::istreambuf_iterator<char>(file), {});
    if (!file || ssl.pem_root_certs.empty()) {
      return absl::NotFoundError(absl::StrCat(
          "client: tls_authorities must be a PEM file that can be read, got ", *authorities));
    }
  }
  return grpc::SslCredentials(ssl);
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const ClientOptions& options) {
  if (options.target.empty()) {
    return absl::InvalidArgumentError("client: target must be host:port or unix:/path, got none");
  }
  if (options.max_attempts < 1 || options.max_attempts > kMostAttempts) {
    return absl::InvalidArgumentError(absl::StrCat("client: max_attempts must be 1 to ",
                                                   kMostAttempts, ", got ", options.max_attempts));
  }
  if (options.spin_us < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("client: spin_us must be >= 0, got ", options.spin_us));
  }
  const auto credentials = Credentials(options.tls_authorities);
  if (!credentials.ok()) return credentials.status();
  return grpc::CreateCustomChannel(options.target, *credentials, Arguments(options));
}

}  // namespace attnd::client
