#include <thread>
#include <vector>

#include "tests/bench/transport.d/aligned_bytes.h"
#include "tests/bench/transport.d/echo_server.h"
#include "tests/bench/transport.d/raw_socket.h"

namespace attnd::bench {
namespace {

// A connection opens with the size of its tensors.
void Serve(const Socket& socket) {
  size_t bytes = 0;
  if (!ReceiveAll(socket.fd(), std::as_writable_bytes(std::span(&bytes, 1)))) return;
  AlignedBytes qkv(3 * bytes);
  while (ReceiveAll(socket.fd(), qkv)) SendAll(socket.fd(), {{qkv.data(), bytes}});
}

class RawServer final : public EchoServer {
 public:
  RawServer() : listener_(Listen(&port_)) {
    std::thread([this] {
      for (;;) std::thread([socket = Accept(listener_)] { Serve(socket); }).detach();
    }).detach();
  }
  int port() const override { return port_; }

 private:
  int port_ = 0;
  const Socket listener_;
};

}  // namespace

std::unique_ptr<EchoServer> NewRawServer(const ServerOptions&) {
  return std::make_unique<RawServer>();
}

}  // namespace attnd::bench
