// Asynchronous calls: callbacks, cancellation, a client that is destroyed.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/client_cpp/fake_server.h"
#include "tests/client_cpp/sample.h"

namespace attnd::client {
namespace {

grpc::Status UntilCancelled(grpc::ServerContext* context, const std::string&, std::string*) {
  while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return grpc::Status::CANCELLED;
}

TEST(Async, ManyThreadsManyCalls) {
  FakeServer server(EchoUnary);
  const auto client = MustCreate({.target = server.target()});
  constexpr int kThreads = 4, kCalls = 50;
  std::vector<std::vector<float>> sent;
  for (int i = 0; i < kThreads * kCalls; ++i) sent.push_back(Values(i * 37, static_cast<float>(i)));
  std::atomic<int> right{0}, called{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = t; i < kThreads * kCalls; i += kThreads) {
        const auto call =
            client->ForwardAsync(RequestOf(sent[i]), [&, i](const absl::StatusOr<Reply>& reply) {
              right += reply.ok() && FloatsOf(*reply) == sent[i];
              ++called;
            });
        EXPECT_TRUE(call.ok()) << call.status();
        // Blocking calls run at the same time.
        EXPECT_TRUE(i % 10 != 0 || client->Forward(RequestOf(sent[i])).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(Eventually([&] { return called == kThreads * kCalls; }));
  EXPECT_EQ(right, kThreads * kCalls);
}

TEST(Async, WrongRequestsAreRefusedWithoutACallback) {
  const auto client = MustCreate({.target = "127.0.0.1:1"});
  Request request;
  request.tensors = {{.name = "q", .shape = {1}}};
  bool called = false;
  EXPECT_TRUE(absl::IsInvalidArgument(
      client->ForwardAsync(request, [&](auto) { called = true; }).status()));
  EXPECT_FALSE(called);
}

TEST(Async, CancelEndsACallOnce) {
  FakeServer server(UntilCancelled);
  const auto client = MustCreate({.target = server.target()});
  const auto q = Values(100'000);
  std::promise<absl::Status> ended;
  const auto call = client->ForwardAsync(
      RequestOf(q), [&](const auto& reply) { ended.set_value(reply.status()); });
  ASSERT_TRUE(call.ok());
  call->Cancel();
  auto future = ended.get_future();
  ASSERT_EQ(future.wait_for(kLong), std::future_status::ready);
  EXPECT_TRUE(absl::IsCancelled(future.get()));
  // A second set_value would throw.
  call->Cancel();
}

TEST(Async, ACallThatGoesWithItsClientEndsOnceWithCancelled) {
  FakeServer server(UntilCancelled);
  const auto q = Values(100'000);
  constexpr int kCalls = 8;
  std::atomic<int> cancelled{0}, called{0};
  auto client = MustCreate({.target = server.target()});
  auto last = absl::StatusOr<AsyncCall>(absl::UnknownError(""));
  for (int i = 0; i < kCalls; ++i) {
    last = client->ForwardAsync(RequestOf(q), [&](const auto& reply) {
      ++called;
      cancelled += absl::IsCancelled(reply.status());
      // The client is closed: refused, not started.
      EXPECT_FALSE(client->ForwardAsync(RequestOf(q), [&](auto) { ++called; }).ok());
    });
    ASSERT_TRUE(last.ok());
  }
  Client* const doomed = client.get();
  doomed->~Client();
  EXPECT_EQ(called, kCalls);
  EXPECT_EQ(cancelled, kCalls);
  operator delete(client.release());
  last->Cancel();
}

TEST(Async, CallbacksMayStartCalls) {
  FakeServer server(EchoUnary);
  const auto q = Values(10);
  std::promise<void> ended;
  std::atomic<int> left{100};
  Callback next;
  const auto client = MustCreate({.target = server.target()});
  next = [&](const absl::StatusOr<Reply>& reply) {
    EXPECT_TRUE(reply.ok()) << reply.status();
    if (--left == 0) return ended.set_value();
    EXPECT_TRUE(client->ForwardAsync(RequestOf(q), next).ok());
  };
  ASSERT_TRUE(client->ForwardAsync(RequestOf(q), next).ok());
  EXPECT_EQ(ended.get_future().wait_for(kLong), std::future_status::ready);
}

}  // namespace
}  // namespace attnd::client
