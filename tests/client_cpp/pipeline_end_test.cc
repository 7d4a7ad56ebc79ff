// How a pipeline ends: streams that fail, servers that die, clients that are destroyed.
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

using attn::v1::RunRequest;

// Reads and counts messages until the client is gone.
struct Holding {
  std::atomic<int> read{0};

  FakeServer::Run run() {
    return [this](grpc::ServerContext*, ServerStream* stream) {
      RunRequest request;
      while (ReadRequest(stream, &request)) ++read;
      return grpc::Status::OK;
    };
  }
};

// Submits `n` requests of 64 KB and counts how they end.
struct Sent {
  const std::vector<float> q = Values(16'000);
  std::atomic<int> called{0};
  std::atomic<int> code{0};  // of the last one

  void Submit(Pipeline* pipeline, int n) {
    for (int i = 0; i < n; ++i) {
      EXPECT_TRUE(pipeline
                      ->Submit(Direction::kForward, RequestOf(q),
                               [this](const absl::StatusOr<Reply>& reply) {
                                 code = reply.status().raw_code();
                                 ++called;
                               })
                      .ok());
    }
  }
};

TEST(PipelineEnd, AStreamThatFailsFailsAllThatIsUnanswered) {
  FakeServer server(EchoUnary, [](auto*, ServerStream* stream) {
    RunRequest request;
    EXPECT_TRUE(ReadRequest(stream, &request));
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "request: a rule is broken");
  });
  Sent sent;
  const auto client = MustCreate({.target = server.target()});
  const auto pipeline = client->OpenPipeline();
  sent.Submit(pipeline.get(), 1);
  const absl::Status status = absl::InvalidArgumentError("request: a rule is broken");
  EXPECT_EQ(pipeline->Close(), status);
  EXPECT_EQ(sent.called, 1);
  EXPECT_EQ(sent.code, static_cast<int>(absl::StatusCode::kInvalidArgument));
}

TEST(PipelineEnd, SubmitAfterAFailureReturnsIt) {
  FakeServer server(EchoUnary, [](auto*, ServerStream*) {
    return grpc::Status(grpc::StatusCode::INTERNAL, "broken");
  });
  const auto client = MustCreate({.target = server.target()});
  const auto pipeline = client->OpenPipeline();
  const auto q = Values(1);
  absl::Status status;
  EXPECT_TRUE(Eventually([&] {
    status = pipeline->Submit(Direction::kForward, RequestOf(q), [](const auto&) {});
    return !status.ok();
  }));
  EXPECT_EQ(status, absl::InternalError("broken"));
}

TEST(PipelineEnd, AServerThatEndsTheStreamEarlyIsUnavailable) {
  FakeServer server(EchoUnary, [](auto*, ServerStream*) { return grpc::Status::OK; });
  const auto client = MustCreate({.target = server.target()});
  const auto pipeline = client->OpenPipeline();
  const auto q = Values(1);
  EXPECT_TRUE(Eventually([&] {
    return absl::IsUnavailable(
        pipeline->Submit(Direction::kForward, RequestOf(q), [](const auto&) {}));
  }));
}

TEST(PipelineEnd, AServerThatDiesFailsWhatIsUnanswered) {
  Holding holding;
  auto server = std::make_unique<FakeServer>(EchoUnary, holding.run());
  Sent sent;
  const auto client = MustCreate({.target = server->target()});
  const auto pipeline = client->OpenPipeline();
  sent.Submit(pipeline.get(), 5);
  EXPECT_TRUE(Eventually([&] { return holding.read == 5; }));
  server.reset();
  EXPECT_FALSE(pipeline->Close().ok());
  EXPECT_EQ(sent.called, 5);
}

TEST(PipelineEnd, NoServerListens) {
  Sent sent;
  const auto client = MustCreate({.target = "127.0.0.1:1"});
  const auto pipeline = client->OpenPipeline();
  const absl::Status submitted =
      pipeline->Submit(Direction::kForward, RequestOf(sent.q), [&](const auto&) { ++sent.called; });
  EXPECT_TRUE(absl::IsUnavailable(pipeline->Close()));
  EXPECT_EQ(sent.called, submitted.ok() ? 1 : 0);
}

TEST(PipelineEnd, DestructionCancels) {
  Holding holding;
  FakeServer server(EchoUnary, holding.run());
  Sent sent;
  const auto client = MustCreate({.target = server.target()});
  {
    const auto pipeline = client->OpenPipeline();
    sent.Submit(pipeline.get(), 5);
  }
  EXPECT_EQ(sent.called, 5);
  EXPECT_EQ(sent.code, static_cast<int>(absl::StatusCode::kCancelled));
}

TEST(PipelineEnd, APipelineOutlivesItsClient) {
  Holding holding;
  FakeServer server(EchoUnary, holding.run());
  Sent sent;
  auto client = MustCreate({.target = server.target()});
  const auto pipeline = client->OpenPipeline();
  sent.Submit(pipeline.get(), 5);
  client.reset();
  EXPECT_EQ(sent.called, 5);
  EXPECT_EQ(sent.code, static_cast<int>(absl::StatusCode::kCancelled));
  EXPECT_TRUE(absl::IsCancelled(
      pipeline->Submit(Direction::kForward, RequestOf(sent.q), [](const auto&) {})));
  EXPECT_TRUE(absl::IsCancelled(pipeline->Close()));
}

TEST(PipelineEnd, ARequestThatWaitsToBeTriedAgainGoesWithItsClient) {
  FakeServer server(EchoUnary, [](auto*, ServerStream* stream) {
    RunRequest request;
    while (ReadRequest(stream, &request)) {
      WriteMessage(stream, Refuse(request, grpc::StatusCode::RESOURCE_EXHAUSTED, "full", false));
    }
    return grpc::Status::OK;
  });
  Sent sent;
  auto client = MustCreate({.target = server.target(), .max_attempts = 5});
  const auto pipeline = client->OpenPipeline();
  sent.Submit(pipeline.get(), 3);
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  client.reset();
  EXPECT_EQ(sent.called, 3);
}

TEST(PipelineEnd, AnAnswerToNothingIsAnError) {
  for (const bool has_content : {false, true}) {
    FakeServer server(EchoUnary, [has_content](auto*, ServerStream* stream) {
      RunRequest request;
      EXPECT_TRUE(ReadRequest(stream, &request));
      attn::v1::RunReply reply;
      if (has_content) reply = EchoRun(request);
      reply.set_id("elsewhere");
      WriteMessage(stream, reply);
      while (ReadRequest(stream, &request)) {
      }
      return grpc::Status::OK;
    });
    Sent sent;
    const auto client = MustCreate({.target = server.target()});
    const auto pipeline = client->OpenPipeline();
    sent.Submit(pipeline.get(), 1);
    const absl::Status status = pipeline->Close();
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_EQ(status.message(),
              has_content ? "reply: id must be that of an unanswered request, got elsewhere"
                          : "reply: content is required, got none");
    EXPECT_EQ(sent.called, 1);
  }
}

TEST(PipelineEnd, AnAnswerToWhatWasNotSentIsAnError) {
  constexpr int kRequests = 40;
  std::promise<void> submitted;
  FakeServer server(EchoUnary, [&submitted](auto*, ServerStream* stream) {
    submitted.get_future().wait();
    // 40 MB that the server does not read exceed any window: the last request is still unsent.
    attn::v1::RunReply reply;
    reply.set_id(std::to_string(kRequests));
    reply.mutable_forward();
    WriteMessage(stream, reply);
    RunRequest request;
    for (int i = 0; i < kRequests && ReadRequest(stream, &request); ++i) continue;
    return grpc::Status::OK;
  });
  Sent sent = {.q = Values(250'000)};
  const auto client = MustCreate({.target = server.target()});
  const auto pipeline = client->OpenPipeline();
  sent.Submit(pipeline.get(), kRequests);
  submitted.set_value();
  const absl::Status status = pipeline->Close();
  EXPECT_EQ(status, absl::InternalError("reply: id must be that of an unanswered request, got 40"));
  EXPECT_EQ(sent.called, kRequests);
}

TEST(PipelineEnd, RefusedOutrightWithoutRun) {
  FakeServer server(EchoUnary, [](auto*, ServerStream*) {
    return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "no Run here");
  });
  const auto client = MustCreate({.target = server.target()});
  EXPECT_EQ(client->OpenPipeline()->Close(), absl::UnimplementedError("no Run here"));
}

}  // namespace
}  // namespace attnd::client
