#include "channel.h"

#include <arpa/inet.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
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

// An address of the loopback: "host", "host:port", "[ipv6]", "[ipv6]:port", or IPv6 without a port.
bool IsLoopback(absl::string_view address) {
  if (absl::ConsumePrefix(&address, "[")) {
    address = address.substr(0, address.find(']'));
  } else if (std::count(address.begin(), address.end(), ':') == 1) {
    address = address.substr(0, address.find(':'));
  }
  const std::string host = absl::AsciiStrToLower(absl::StripSuffix(address, "."));
  if (host == "localhost" || absl::EndsWith(host, ".localhost")) return true;
  in6_addr ip{};
  // An IPv4 address as IPv6 is ::ffff:a.b.c.d.
  if (inet_pton(AF_INET6, host.c_str(), &ip) != 1 &&
      inet_pton(AF_INET6, absl::StrCat("::ffff:", host).c_str(), &ip) != 1) {
    return false;
  }
  if (IN6_IS_ADDR_V4MAPPED(&ip)) {
    constexpr uint8_t kAny[4] = {0, 0, 0, 0};
    return ip.s6_addr[12] == 127 || std::equal(kAny, kAny + 4, ip.s6_addr + 12);
  }
  return IN6_IS_ADDR_LOOPBACK(&ip) || IN6_IS_ADDR_UNSPECIFIED(&ip);
}

// Whether `target`, in any of gRPC's spellings, is on this machine by a socket file or addresses of
// the loopback: no proxy of the environment leads there.
bool IsLocal(const std::string& target) {
  const auto [scheme, rest] = std::pair<absl::string_view, absl::string_view>(
      absl::StrSplit(target, absl::MaxSplits(':', 1)));
  if (scheme == "unix" || scheme == "unix-abstract" || scheme == "vsock") return true;
  absl::string_view addresses = target;
  if (scheme == "dns" || scheme == "ipv4" || scheme == "ipv6") {
    // "dns:host:port", "dns:///host:port", "dns://server/host:port", "ipv4:a:port,b:port"
    addresses = rest;
    if (absl::ConsumePrefix(&addresses, "//")) {
      addresses.remove_prefix(std::min(addresses.find('/'), addresses.size()));
    }
    absl::ConsumePrefix(&addresses, "/");
  }
  const std::string decoded =
      absl::StrReplaceAll(addresses, {{"%5B", "["}, {"%5D", "]"}, {"%5b", "["}, {"%5d", "]"}});
  const std::vector<std::string> parts = absl::StrSplit(decoded, ',');
  return std::all_of(parts.begin(), parts.end(), [](const auto& part) { return IsLoopback(part); });
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
