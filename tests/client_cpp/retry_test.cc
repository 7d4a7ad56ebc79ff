// Calls that the server has no room for are tried again; others never.
#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "retry.h"
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
    EXPECT_EQ(FloatsOf(*reply), q);
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

TEST(Retry, PermanentErrorsAreNotRetried) {
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
  // The backoffs are at least 80, 160, 320 and 640 ms: the deadline comes before a fifth attempt.
  const auto reply = client->Forward(RequestOf(q), {.timeout = std::chrono::milliseconds(1000)});
  EXPECT_FALSE(reply.ok());
  EXPECT_GE(refusing.calls, 1);
  EXPECT_LE(refusing.calls, 4);
}

// Each of many callers used up all of its attempts.
TEST(Retry, CallersShareWhatMayBeSentAgain) {
  constexpr int kCallers = 150;
  Refusing refusing{.refusals = 10'000};
  FakeServer server(refusing.unary(), [&](auto*, ServerStream* stream) {
    attn::v1::RunRequest request;
    while (ReadRequest(stream, &request)) {
      ++refusing.calls;
      WriteMessage(stream, Refuse(request, refusing.code, "request: queue is full", false));
    }
    return grpc::Status::OK;
  });
  const auto client = MustCreate({.target = server.target()});
  const auto q = Values(10);
  std::atomic<int> refused{0};
  const Callback count = [&](const absl::StatusOr<Reply>& reply) {
    refused += absl::IsResourceExhausted(reply.status());
  };
  for (int i = 0; i < kCallers; ++i) EXPECT_TRUE(client->ForwardAsync(RequestOf(q), count).ok());
  EXPECT_TRUE(Eventually([&] { return refused == kCallers; }));
  EXPECT_GT(refusing.calls, kCallers);
  EXPECT_LE(refusing.calls, kCallers + kRetryTokens / 2);

  refused = refusing.calls = 0;
  const auto pipeline = client->OpenPipeline({.max_in_flight = kCallers});
  for (int i = 0; i < kCallers; ++i) {
    EXPECT_TRUE(pipeline->Submit(Direction::kForward, RequestOf(q), count).ok());
  }
  EXPECT_TRUE(pipeline->Close().ok());
  EXPECT_EQ(refused, kCallers);
  EXPECT_GT(refusing.calls, kCallers);
  EXPECT_LE(refusing.calls, kCallers + kRetryTokens / 2);
}

TEST(Retry, ABucketEmptiesWithRefusalsAndFillsWithSuccesses) {
  const auto retries = [](RetryBucket* bucket, int64_t bytes) {
    int count = 0;
    while (bucket->Refused(bytes)) ++count;
    return count;
  };
  RetryBucket small, large;
  EXPECT_EQ(retries(&small, 100), 49);
  EXPECT_EQ(retries(&large, 64 << 20), 9);
  EXPECT_FALSE(small.Refused(100));
  for (int i = 0; i < 40; ++i) small.Succeeded();
  EXPECT_EQ(retries(&small, 100), 2);
  for (int i = 0; i < 100'000; ++i) small.Succeeded();
  EXPECT_EQ(retries(&small, 100), 49);
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
