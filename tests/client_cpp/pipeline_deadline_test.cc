// Requests of a pipeline that are not answered in time.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/client_cpp/fake_server.h"
#include "tests/client_cpp/sample.h"

namespace attnd::client {
namespace {

using attn::v1::RunRequest;
using std::chrono::milliseconds;

// Answers requests whose first value is positive; the others when the stream is half-closed.
grpc::Status AnswerPositive(grpc::ServerContext*, ServerStream* stream) {
  RunRequest request;
  std::vector<RunRequest> kept;
  while (ReadRequest(stream, &request)) {
    if (reinterpret_cast<const float*>(request.raw(0).data())[0] > 0) {
      WriteMessage(stream, EchoRun(request));
    } else {
      kept.push_back(request);
    }
  }
  for (const RunRequest& late : kept) WriteMessage(stream, EchoRun(late));
  return grpc::Status::OK;
}

// The codes of the callbacks, counted.
class Codes {
 public:
  Callback Count() {
    return [this](const absl::StatusOr<Reply>& reply) {
      const std::lock_guard lock(mu_);
      ++counts_[reply.status().code()];
    };
  }
  int of(absl::StatusCode code) {
    const std::lock_guard lock(mu_);
    return counts_[code];
  }

 private:
  std::mutex mu_;
  std::map<absl::StatusCode, int> counts_;
};

TEST(PipelineDeadline, WhatIsLateEndsAloneAndTheStreamGoesOn) {
  FakeServer server(EchoUnary, AnswerPositive);
  const auto client = MustCreate({.target = server.target()});
  const auto pipeline = client->OpenPipeline({.timeout = milliseconds(100)});
  const auto kept = Values(10), answered = Values(10, 1);
  Codes codes;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(pipeline->Submit(Direction::kForward, RequestOf(kept), codes.Count()).ok());
  }
  EXPECT_TRUE(Eventually([&] { return codes.of(absl::StatusCode::kDeadlineExceeded) == 3; }));
  // On a busy machine these may be late, too: repeats until one is in time.
  EXPECT_TRUE(Eventually([&] {
    EXPECT_TRUE(pipeline->Submit(Direction::kForward, RequestOf(answered), codes.Count()).ok());
    return codes.of(absl::StatusCode::kOk) > 0;
  }));
  EXPECT_EQ(pipeline->Close(), absl::OkStatus());
  // A write that gRPC handed back after the end left the pipeline writing to no stream.
  EXPECT_EQ(pipeline->Close(), absl::OkStatus());
}

TEST(PipelineDeadline, IsTheClientsUnlessItHasOne) {
  FakeServer server(EchoUnary, AnswerPositive);
  const auto client = MustCreate({.target = server.target(), .timeout = milliseconds(50)});
  const auto pipeline = client->OpenPipeline();
  const auto kept = Values(10);
  Codes codes;
  ASSERT_TRUE(pipeline->Submit(Direction::kForward, RequestOf(kept), codes.Count()).ok());
  EXPECT_TRUE(Eventually([&] { return codes.of(absl::StatusCode::kDeadlineExceeded) == 1; }));
}

TEST(PipelineDeadline, EndsTheWaitForRoom) {
  FakeServer server(EchoUnary, AnswerPositive);
  const auto client = MustCreate({.target = server.target()});
  const auto pipeline = client->OpenPipeline({.max_in_flight = 1, .timeout = milliseconds(500)});
  const auto kept = Values(10);
  Codes codes;
  ASSERT_TRUE(pipeline->Submit(Direction::kForward, RequestOf(kept), codes.Count()).ok());
  // The first one is late, but holds its place until the server answers.
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      pipeline->Submit(Direction::kForward, RequestOf(kept), codes.Count())));
  EXPECT_TRUE(Eventually([&] { return codes.of(absl::StatusCode::kDeadlineExceeded) == 1; }));
}

TEST(PipelineDeadline, CloseWaitsForNothingThatIsLate) {
  std::atomic<bool> was_cancelled{false};
  FakeServer server(EchoUnary, [&](grpc::ServerContext* context, ServerStream* stream) {
    RunRequest request;
    while (ReadRequest(stream, &request)) {
    }
    was_cancelled = Eventually([&] { return context->IsCancelled(); });
    return grpc::Status::OK;
  });
  const auto client = MustCreate({.target = server.target()});
  for (const bool is_late_before : {true, false}) {
    was_cancelled = false;
    const auto pipeline = client->OpenPipeline({.timeout = milliseconds(500)});
    const auto q = Values(10);
    Codes codes;
    ASSERT_TRUE(pipeline->Submit(Direction::kForward, RequestOf(q), codes.Count()).ok());
    if (is_late_before) {
      EXPECT_TRUE(Eventually([&] { return codes.of(absl::StatusCode::kDeadlineExceeded) == 1; }));
    }
    EXPECT_EQ(pipeline->Close(), absl::OkStatus());
    EXPECT_EQ(codes.of(absl::StatusCode::kDeadlineExceeded), 1);
    EXPECT_TRUE(Eventually([&] { return was_cancelled.load(); }));
  }
}

// After an announcement its message must follow, even past the deadline.
TEST(PipelineDeadline, LargeMessagesThatAreLateBreakNoRule) {
  std::atomic<int> broken{0}, whole{0};
  FakeServer server(EchoUnary, [&](auto*, ServerStream* stream) {
    RunRequest request;
    std::string announced;
    while (ReadMessage(stream, &request)) {
      if (request.content_case() == RunRequest::kNextMessageBytes) {
        broken += !announced.empty();
        announced = request.id();
      } else {
        broken += announced != request.id();
        announced.clear();
        ++whole;
        WriteMessage(stream, EchoRun(request));
      }
    }
    return grpc::Status::OK;
  });
  const auto client = MustCreate({.target = server.target()});
  const auto pipeline = client->OpenPipeline({.timeout = milliseconds(15)});
  const auto q = Values(4 << 20);  // 16 MB
  Codes codes;
  for (int i = 0; i < 12; ++i) {
    ASSERT_TRUE(pipeline->Submit(Direction::kForward, RequestOf(q), codes.Count()).ok());
  }
  EXPECT_EQ(pipeline->Close(), absl::OkStatus());
  EXPECT_EQ(codes.of(absl::StatusCode::kOk) + codes.of(absl::StatusCode::kDeadlineExceeded), 12);
  EXPECT_GT(codes.of(absl::StatusCode::kDeadlineExceeded), 0);
  EXPECT_EQ(broken, 0);
}

}  // namespace
}  // namespace attnd::client
