// A client that neither reads its answers nor leaves.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "server/transport.h"
#include "tests/server/rpc_client.h"

namespace attnd {
namespace {

// Answers each message with 8 MiB, which do not fit a window. They are made here: the thread
// sanitizer takes copies of what another thread received for races, a million of them.
class LargeCall final : public Handler {
 public:
  explicit LargeCall(bool streams) : streams_(streams) {}
  void OnHeaders(Rpc& rpc) override { rpc.Read(); }
  void OnMessage(Rpc& rpc, const grpc::ByteBuffer* message) override {
    if (message == nullptr) return rpc.Close(absl::OkStatus());
    const grpc::ByteBuffer large = BytesOf(std::string(8 << 20, 'x'));
    if (!streams_) return rpc.Reply(large);
    rpc.Send(large);
    rpc.Read();
  }

 private:
  const bool streams_;
};

template <class F>
bool Becomes(const F& condition) {
  for (int i = 0; i < 60000 && !condition(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return condition();
}

// Regression: such a client held the memory of its answers for ever.
class UnreadAnswers : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Calls, UnreadAnswers, testing::Bool(),
                         [](const auto& streams) { return streams.param ? "stream" : "unary"; });

TEST_P(UnreadAnswers, AreCancelled) {
  MethodTable methods;
  methods["/test/Large"] = [] { return std::make_unique<LargeCall>(GetParam()); };
  const auto transport = Transport::Start({.addresses = {"127.0.0.1:0"}}, std::move(methods));
  ASSERT_TRUE(transport.ok()) << transport.status();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);         // else a client ends calls by itself
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // else its window may grow to hold an answer
  const RpcClient client((*transport)->addresses()[0], arguments);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  auto stream = client.Open("/test/Large", &context);
  const TimePoint begin = std::chrono::steady_clock::now();
  stream->Write(BytesOf("x"));
  const auto open_calls = [&] { return (*transport)->open_calls(); };
  ASSERT_TRUE(Becomes([&] { return (*transport)->calls() == 1 && open_calls() == 1; }));
  // Most of it does not fit the window. Patience is 30 s plus one for each MiB.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  (*transport)->CancelStalled(begin + std::chrono::seconds(37));
  EXPECT_EQ(open_calls(), 1);
  EXPECT_TRUE(Becomes([&] {
    (*transport)->CancelStalled(std::chrono::steady_clock::now() + std::chrono::seconds(39));
    return open_calls() == 0;
  }));
  grpc::ByteBuffer message;
  while (stream->Read(&message)) continue;
  EXPECT_EQ(stream->Finish().error_code(), grpc::CANCELLED);
}

}  // namespace
}  // namespace attnd
