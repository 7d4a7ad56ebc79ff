// The HTTP pages for monitoring: /metrics, /healthz, /readyz.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace attnd {

// A connection is closed after these times even if bytes still flow.
struct HttpTimes {
  std::chrono::milliseconds request{5000};  // for the whole request to arrive
  std::chrono::milliseconds reply{10000};   // for the client to receive the reply
};

// GNU libmicrohttpd, run by one thread. GET and HEAD only (405 otherwise); an unknown page is a 404
// whose text lists the pages. One request a connection. At most kMostConnections, with 16 KiB and a
// reply each: a new one replaces the oldest whose request is not complete, so that slow connections
// cannot keep others out.
class HttpServer {
 public:
  static constexpr size_t kMostConnections = 128;

  // Called on the server's thread. An exception becomes a 500.
  struct Pages {
    std::function<absl::StatusOr<std::string>()> metrics;  // Prometheus text, version 0.0.4
    std::function<bool()> is_ready;                        // /readyz: 200 or 503
    std::function<absl::Status()> health;  // /healthz: 200, or 503 with the message; null: 200
  };

  // `address` is "host:port" as for ListenOn; port 0 takes a free one. Errors: INVALID_ARGUMENT for
  // an invalid address, UNAVAILABLE when it cannot be listened on ("http: cannot listen on
  // 127.0.0.1:8002: ...").
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address, Pages pages,
                                                           HttpTimes times = {});

  // Stops at once: a reply on its way is cut off.
  ~HttpServer();

  int port() const;
  const std::string& address() const;  // with the port that is listened on

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace attnd
