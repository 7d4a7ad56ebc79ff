// The HTTP pages for machines that watch the server: /metrics, /healthz, /readyz.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace attnd {

// After these times a connection is cut off, however lively it is.
struct HttpTimes {
  std::chrono::milliseconds request{5000};  // until the request is complete
  std::chrono::milliseconds reply{10000};   // until the reply is taken
};

// GNU libmicrohttpd, run by one thread. GET and HEAD only (405 otherwise); an unknown page is a 404
// whose text lists the pages. One request a connection. At most kMostConnections, and 16 KiB and a
// reply for each: the oldest whose request is not complete gives way to a new one, so that
// connections that trickle keep nobody out.
class HttpServer {
 public:
  static constexpr size_t kMostConnections = 128;

  // Called on the server's thread. What they throw becomes a 500.
  struct Pages {
    std::function<absl::StatusOr<std::string>()> metrics;  // Prometheus text, version 0.0.4
    std::function<bool()> is_ready;                        // /readyz: 200 or 503
    std::function<absl::Status()> health;  // /healthz: 200, or 503 with the message; null: 200
  };

  // `address` is "host:port" as for ListenOn; port 0 takes a free one. Errors: INVALID_ARGUMENT for
  // an address that is none, UNAVAILABLE when it cannot be listened on ("http: cannot listen on
  // 127.0.0.1:8002: ...").
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address, Pages pages,
                                                           HttpTimes times = {});

  // At once: a reply that is on its way is cut off.
  ~HttpServer();

  int port() const;
  const std::string& address() const;  // with the port that is listened on

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace attnd
