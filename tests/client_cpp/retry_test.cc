// Calls that the server has no room for are tried again; others never.
#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "channel.h"
#include "tests/client_cpp/fake_server.h"
#include "tests/client_cpp/sample.h"

namespace attnd::client {
namespace {

// Refuses the first `refusals` calls with `code`, then echoes.
struct Refusing {
  grpc::StatusCode code = grpc::StatusCode::RESOURCE_EXHAUSTED;
  int refusals = 2;
  bool is_permanent = false;
  std::atomic<int> calls{0};

  FakeServer::Unary unary() {
    return [this](grpc::ServerContext* context, const std::string& request, std::string* reply) {
      if (calls++ >= refusals) return EchoUnary(context, request, reply);
      if (is_permanent) context->AddTrailingMetadata("grpc-retry-pushback-ms", "-1");
      return grpc::Status(code, "request: queue is full");
    };
  }
};

TEST(Retry, LargeUploadsAreSentAgainWhole) {
  for (const auto code : {grpc::StatusCode::RESOURCE_EXHAUSTED, grpc::StatusCode::UNAVAILABLE}) {
    Refusing refusing{.code = code};
    FakeServer server(refusing.unary());
    const auto client = MustCreate({.target = server.target()});
    const auto q = Values(8 << 20);  // 32 MB
    const auto reply = client->Forward(RequestOf(q));
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->Find("out")->ToVector<float>(), q);
    EXPECT_EQ(refusing.calls, 3);
  }
}

TEST(Retry, GivesUpAfterTheLastAttempt) {
  for (const int max_attempts : {1, 3}) {
    Refusing refusing{.refusals = 100};
    FakeServer server(refusing.unary());
    const auto client = MustCreate({.target = server.target(), .max_attempts = max_attempts});
    const auto q = Values(10);
    EXPECT_EQ(client->Forward(RequestOf(q)).status(),
              absl::ResourceExhaustedError("request: queue is full"));
    EXPECT_EQ(refusing.calls, max_attempts);
  }
}

TEST(Retry, NotWhatCannotBeMended) {
  Refusing permanent{.refusals = 100, .is_permanent = true};
  Refusing wrong{.code = grpc::StatusCode::INVALID_ARGUMENT, .refusals = 100};
  Refusing aborted{.code = grpc::StatusCode::ABORTED, .refusals = 100};
  for (Refusing* refusing : {&permanent, &wrong, &aborted}) {
    FakeServer server(refusing->unary());
    const auto q = Values(10);
    EXPECT_FALSE(MustCreate({.target = server.target()})->Forward(RequestOf(q)).ok());
    EXPECT_EQ(refusing->calls, 1);
  }
}

TEST(Retry, StaysWithinTheDeadline) {
  Refusing refusing{.refusals = 100};
  FakeServer server(refusing.unary());
  const auto client = MustCreate({.target = server.target(), .max_attempts = 5});
  const auto q = Values(10);
  // The first backoff is at least 80 ms: the deadline comes before a second attempt is done.
  const auto reply = client->Forward(RequestOf(q), {.timeout = std::chrono::milliseconds(60)});
  EXPECT_FALSE(reply.ok());
  EXPECT_EQ(refusing.calls, 1);
}

TEST(Retry, BackoffGrowsToItsBoundAndIsJittered) {
  const auto milliseconds = [](int attempt, double random) {
    return std::chrono::duration<double, std::milli>(BackoffAfter(attempt, random)).count();
  };
  EXPECT_DOUBLE_EQ(milliseconds(1, 0.5), 100);
  EXPECT_DOUBLE_EQ(milliseconds(2, 0.5), 200);
  EXPECT_DOUBLE_EQ(milliseconds(4, 0.5), 800);
  EXPECT_DOUBLE_EQ(milliseconds(6, 0.5), 2000);
  EXPECT_DOUBLE_EQ(milliseconds(1000, 0.5), 2000);
  EXPECT_DOUBLE_EQ(milliseconds(1, 0), 80);
  EXPECT_DOUBLE_EQ(milliseconds(1, 1), 120);
}

}  // namespace
}  // namespace attnd::client
