// A call finds its connection by the number of a descriptor, which gRPC closes when it likes.
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

// Calls that nobody answers before the test does.
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

// While a call is kept, gRPC keeps the descriptor of its connection, long after the client has
// gone: no other connection has its number, so that nothing of one counts for another.
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
    // With the client goes its connection.
  }
  // Sockets of this process that are free would be taken first.
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
