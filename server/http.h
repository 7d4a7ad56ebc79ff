// The HTTP pages for machines that watch the server: /metrics, /healthz, /readyz.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace attnd {

// GET and HEAD only (405 otherwise); an unknown page is a 404 whose text lists the pages. One
// request a connection, which must arrive within a second; 32 threads, so that some silent
// connections hold nobody up and many only for that second.
class HttpServer {
 public:
  // Called on the server's threads, possibly several at once. What they throw becomes a 500.
  struct Pages {
    std::function<absl::StatusOr<std::string>()> metrics;  // Prometheus text, version 0.0.4
    std::function<bool()> is_ready;                        // /readyz: 200 or 503
    std::function<absl::Status()> health;  // /healthz: 200, or 503 with the message; null: 200
  };

  // `address` is "host:port", host an IPv4 address or a name that has one (Debian's civetweb knows
  // no IPv6); port 0 takes a free one. Errors: INVALID_ARGUMENT for an address that is none,
  // UNAVAILABLE when it cannot be listened on ("http: cannot listen on 127.0.0.1:8002: ...").
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address, Pages pages);

  // Answers what is being answered, then stops the threads: at once, or within about two seconds if
  // a connection is open that sends nothing.
  ~HttpServer();

  int port() const;
  const std::string& address() const;  // with the port that is listened on

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace attnd
