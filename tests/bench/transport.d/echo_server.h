// The servers under load. Each answers Forward with out = q, without compute, and listens on a free
// port of the loopback.
#pragma once

#include <memory>

namespace attnd::bench {

class EchoServer {
 public:
  virtual ~EchoServer() = default;
  virtual int port() const = 0;
};

struct ServerOptions {
  int spin_us = 0;
  bool large_reads = false;
};
// The transport and codec of attnd-server. In place: out is the slices of the request that hold q.
// Gather: q, k and v are copied once, each into flat aligned memory, as a lane does; out is the
// copy of q.
std::unique_ptr<EchoServer> NewInPlaceServer(const ServerOptions& options);
std::unique_ptr<EchoServer> NewGatherServer(const ServerOptions& options);
// Generated protobuf services; out is q's string, moved.
std::unique_ptr<EchoServer> NewSyncServer(const ServerOptions& options);
std::unique_ptr<EchoServer> NewCallbackServer(const ServerOptions& options);
// Plain sockets, a thread for each connection.
std::unique_ptr<EchoServer> NewRawServer(const ServerOptions& options);

}  // namespace attnd::bench
