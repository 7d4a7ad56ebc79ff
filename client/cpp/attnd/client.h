// The C++ client of an attnd server.
//
//   auto client = attnd::client::Client::Create({.target = "127.0.0.1:8001"});
//   attnd::client::Request request;
//   request.method.mutable_local()->set_window_left(64);
//   request.tensors = {{.name = "q", .shape = {1, 8, 512, 64}, .data = q.data()}, ...};
//   absl::StatusOr<attnd::client::Reply> reply = (*client)->Forward(request);
//
// Payloads are copied neither on the way out nor on the way in. Errors have gRPC's code and the
// server's text, with one reason per line.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attn/v1/attention.pb.h"
#include "attnd/pipeline.h"
#include "attnd/reply.h"
#include "attnd/request.h"

namespace attnd::client {

class Core;
class UnaryCall;

struct ClientOptions {
  std::string target = "127.0.0.1:8001";  // "host:port", "unix:/path"
  // For each call, and each request of a pipeline, that sets no timeout; includes retries.
  // None: waits without limit.
  std::optional<std::chrono::nanoseconds> timeout = std::chrono::minutes(10);
  // None: plain text. Empty: the system's authorities. Else the path of a PEM file of them.
  std::optional<std::string> tls_authorities;
  // Sent as `authorization: Bearer` with every call; empty: not sent.
  std::string token;
  // A call that ended with RESOURCE_EXHAUSTED or UNAVAILABLE is tried again after 0.1 s, 0.2 s, ...
  // 2 s, each times a random factor, or after the time that the server states, within its deadline;
  // not if the server states that retrying cannot help. Every call is pure, so repeating one has no
  // side effect. 1..5, 1 is off. Retries cover a burst of refusals, not an overload: each refusal
  // takes one of 100 tokens, each success gives 0.1 back, and nothing is tried again while 50 or
  // fewer are left. All calls of the process to one target share a bucket, and all pipelines of a
  // client share one, in which a message counts as one more for each 16 MiB.
  int max_attempts = 4;
  // How long a thread that waits for the network polls before it sleeps. Some hundred microseconds
  // make short calls several times faster where a core is free for it, and waste time elsewhere.
  int spin_us = 0;
};

struct CallOptions {
  std::optional<std::chrono::nanoseconds> timeout;  // none: the client's
};

// Handle of an asynchronous call; may outlive the call and the client.
class AsyncCall {
 public:
  explicit AsyncCall(std::weak_ptr<UnaryCall> call) : call_(std::move(call)) {}
  // The call ends soon with CANCELLED, unless it has ended. Any thread.
  void Cancel() const;

 private:
  std::weak_ptr<UnaryCall> call_;
};

// A connection to one server: made lazily, kept, remade when lost. Thread safe. Asynchronous calls
// and pipelines share one thread, which runs the callbacks: they must not block. A blocking call
// waits on the caller's thread, without a hop.
class Client {
 public:
  // Errors: INVALID_ARGUMENT for options, NOT_FOUND for the PEM file.
  static absl::StatusOr<std::unique_ptr<Client>> Create(const ClientOptions& options = {});
  // Ends asynchronous calls and pipelines with CANCELLED and waits for their callbacks. REQUIRES:
  // no blocking call is running, and this is no callback.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // out = attention(q, k, v).
  absl::StatusOr<Reply> Forward(const Request& request, const CallOptions& options = {});
  // Gradients of every differentiable tensor that is sent.
  absl::StatusOr<Reply> Backward(const Request& request, const CallOptions& options = {});

  // If this succeeds, `done` runs exactly once, on the client's thread; else never.
  [[nodiscard]] absl::StatusOr<AsyncCall> ForwardAsync(const Request& request, Callback done,
                                                       const CallOptions& options = {});
  [[nodiscard]] absl::StatusOr<AsyncCall> BackwardAsync(const Request& request, Callback done,
                                                        const CallOptions& options = {});

  // Many requests on one stream, answered in any order. See pipeline.h.
  std::unique_ptr<Pipeline> OpenPipeline(const PipelineOptions& options = {});

  // Time, FLOPs and memory of a request whose tensors are described, not sent.
  absl::StatusOr<attn::v1::EstimateReply> Estimate(const attn::v1::EstimateRequest& request,
                                                   const CallOptions& options = {});
  absl::StatusOr<attn::v1::ListMethodsReply> ListMethods(const CallOptions& options = {});
  absl::StatusOr<attn::v1::ServerInfoReply> ServerInfo(const CallOptions& options = {});

 private:
  explicit Client(std::shared_ptr<Core> core);

  const std::shared_ptr<Core> core_;
};

// Receives replies in large pieces. With a server that does so, too (attnd-server --large-reads),
// messages from 1 MB up travel 0.7 to 1.4 times as fast, depending on the machine; smaller ones are
// slower. An experiment of gRPC 1.51. Call it first in main, before any use of gRPC; it affects the
// clients that are created afterwards.
void UseLargeReads();

// Makes glibc's malloc keep what gRPC frees: large replies are received up to twice as fast, and
// the process keeps its peak of memory. Call it first in main, before any thread starts.
void TuneMalloc();

}  // namespace attnd::client
