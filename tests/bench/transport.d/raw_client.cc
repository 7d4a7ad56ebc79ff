// The limit that any transport over TCP has: blocking sockets, three user buffers out, one in.
#include <sys/uio.h>

#include "tests/bench/transport.d/load.h"
#include "tests/bench/transport.d/raw_socket.h"

namespace attnd::bench {
namespace {

class RawClient final : public Client {
 public:
  explicit RawClient(const ClientOptions& options) : port_(PortOf(options.target)) {}

  void Prepare(const std::vector<Inputs>& inputs) override {
    callers_.clear();
    for (const Inputs& one : inputs) {
      const size_t bytes = one.q.size();
      Caller& caller = callers_.emplace_back();
      caller.inputs = &one;
      caller.out.resize(bytes);
      caller.socket = Connect(port_);
      SendAll(caller.socket.fd(), {{const_cast<size_t*>(&bytes), sizeof bytes}});
    }
  }

  void Run(Slice& slice) override {
    RunBlocking(slice, [this](int number) {
      Caller& caller = callers_[static_cast<size_t>(number)];
      SendAll(caller.socket.fd(),
              {Piece(caller.inputs->q), Piece(caller.inputs->k), Piece(caller.inputs->v)});
      if (!ReceiveAll(caller.socket.fd(), caller.out)) Die("raw: the server left");
    });
  }

  std::string Reply(int caller) override {
    const AlignedBytes& out = callers_[static_cast<size_t>(caller)].out;
    return {reinterpret_cast<const char*>(out.data()), out.size()};
  }

 private:
  struct Caller {
    const Inputs* inputs = nullptr;
    AlignedBytes out;
    Socket socket;
  };

  static iovec Piece(const AlignedBytes& memory) {
    return {const_cast<std::byte*>(memory.data()), memory.size()};
  }

  const int port_;
  std::vector<Caller> callers_;
};

}  // namespace

std::unique_ptr<Client> NewRawClient(const ClientOptions& options) {
  return std::make_unique<RawClient>(options);
}

}  // namespace attnd::bench
