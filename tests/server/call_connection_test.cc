// A call finds its connection by the number of a descriptor, which gRPC may close at any time.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "server/transport.h"
#include "tests/server/rpc_client.h"

namespace attnd {
namespace {

// Calls that wait until the test answers them.
struct Kept {
  std::mutex mu;
  std::vector<std::shared_ptr<Rpc>> calls;
  size_t size() {
    const std::lock_guard lock(mu);
    return calls.size();
  }
};

class KeptCall final : public Handler {
 public:
  explicit KeptCall(Kept* kept) : kept_(kept) {}
  void OnHeaders(Rpc& rpc) override {
    const std::lock_guard lock(kept_->mu);
    kept_->calls.push_back(rpc.shared_from_this());
  }
  void OnMessage(Rpc&, const grpc::ByteBuffer*) override {}

 private:
  Kept* const kept_;
};

// gRPC keeps the descriptor of a connection as long as a call on it exists, also after the client
// has left: so no other connection gets its number, and bytes of one are not counted for another.
TEST(CallConnection, ItsNumberIsNotGivenAgainWhileTheCallIsThere) {
  constexpr size_t kClients = 8;
  Kept kept;
  MethodTable methods;
  methods["/test/Keep"] = [&kept] { return std::make_unique<KeptCall>(&kept); };
  auto transport = Transport::Start({.addresses = {"127.0.0.1:0"}}, std::move(methods));
  ASSERT_TRUE(transport.ok()) << transport.status();
  for (size_t i = 0; i < kClients; ++i) {
    const RpcClient client((*transport)->addresses()[0]);
    grpc::ClientContext context;
    std::future<grpc::Status> status = std::async(std::launch::async, [&] {
      std::string reply;
      return client.Call("/test/Keep", "x", &reply, &context);
    });
    while (kept.size() <= i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    context.TryCancel();
    EXPECT_EQ(status.get().error_code(), grpc::CANCELLED);
    // The client closes its connection here.
  }
  // The system would reuse free descriptors first.
  std::set<std::string> numbers, peers;
  for (const std::shared_ptr<Rpc>& call : kept.calls) {
    numbers.insert(call->context().peer());
    peers.insert(call->peer());
    call->Finish(absl::CancelledError("gone"));
  }
  EXPECT_EQ(numbers.size(), kClients);
  EXPECT_EQ(peers.size(), kClients);
  kept.calls.clear();
}

}  // namespace
}  // namespace attnd
