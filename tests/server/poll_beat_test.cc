// What the polling thread is doing, as the watchdog reads it.
#include "server/poll_beat.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <utility>

#include "tests/server/rpc_client.h"

namespace attnd {
namespace {

class NoHandler final : public Handler {
 public:
  void OnHeaders(Rpc& rpc) override { rpc.Finish(absl::InternalError("nobody")); }
  void OnMessage(Rpc&, const grpc::ByteBuffer*) override {}
};

// Regression: a view of a temporary copy of the name; the log and /healthz showed freed memory.
TEST(PollBeatTest, NamesTheMethodThatHoldsTheThread) {
  const std::string name = "/test/HoldsThePollingThread";
  std::promise<void> is_in, may_leave;
  MethodTable methods;
  methods[name] = [&] {
    is_in.set_value();
    may_leave.get_future().wait();
    return std::make_unique<NoHandler>();
  };
  auto transport = Transport::Start({.addresses = {"127.0.0.1:0"}}, std::move(methods));
  ASSERT_TRUE(transport.ok()) << transport.status();
  PollBeat beat(transport->get(), /*metrics=*/nullptr);
  const Watchdog::Part part = beat.part();
  EXPECT_EQ(part.doing(), "");
  const RpcClient client((*transport)->addresses()[0]);
  std::string reply;
  auto status =
      std::async(std::launch::async, [&] { return client.Call(name.c_str(), "x", &reply); });
  is_in.get_future().wait();
  EXPECT_EQ(part.doing(), name);
  may_leave.set_value();
  EXPECT_EQ(status.get().error_message(), "nobody");
}

}  // namespace
}  // namespace attnd
