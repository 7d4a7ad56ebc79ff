// Many requests on one stream.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/client_cpp/fake_server.h"
#include "tests/client_cpp/sample.h"

namespace attnd::client {
namespace {

using attn::v1::RunRequest;
using ::testing::ElementsAre;
using ::testing::Pair;

// Outcomes by index, from any thread.
class Outcomes {
 public:
  Callback For(int index) {
    return [this, index](const absl::StatusOr<Reply>& reply) {
      const std::lock_guard lock(mu_);
      order_.push_back(index);
      statuses_.emplace(index, reply.status());
      if (reply.ok()) values_[index] = FloatsOf(*reply);
    };
  }
  std::vector<int> order() const { return Locked(order_); }
  std::multimap<int, absl::Status> statuses() const { return Locked(statuses_); }
  std::map<int, std::vector<float>> values() const { return Locked(values_); }
  size_t size() const { return order().size(); }

 private:
  template <class T>
  T Locked(const T& member) const {
    const std::lock_guard lock(mu_);
    return member;
  }

  mutable std::mutex mu_;
  std::vector<int> order_;
  std::multimap<int, absl::Status> statuses_;
  std::map<int, std::vector<float>> values_;
};

grpc::Status EchoAll(grpc::ServerContext*, ServerStream* stream) {
  RunRequest request;
  while (ReadRequest(stream, &request)) WriteMessage(stream, EchoRun(request));
  return grpc::Status::OK;
}

TEST(Pipeline, AnswersInAnyOrderFindTheirRequests) {
  FakeServer server(EchoUnary, [](auto*, ServerStream* stream) {
    std::vector<RunRequest> requests(3);
    for (RunRequest& request : requests) EXPECT_TRUE(ReadRequest(stream, &request));
    for (const int i : {2, 0, 1}) WriteMessage(stream, EchoRun(requests[i]));
    RunRequest none;
    EXPECT_FALSE(ReadRequest(stream, &none));
    return grpc::Status::OK;
  });
  const auto client = MustCreate({.target = server.target()});
  const auto pipeline = client->OpenPipeline();
  const std::vector<std::vector<float>> sent = {Values(1), Values(100, 5), Values(70'000, 9)};
  Outcomes outcomes;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(pipeline->Submit(Direction::kForward, RequestOf(sent[i]), outcomes.For(i)).ok());
  }
  EXPECT_EQ(pipeline->Close(), absl::OkStatus());
  EXPECT_THAT(outcomes.order(), ElementsAre(2, 0, 1));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(outcomes.values()[i], sent[i]);
  EXPECT_EQ(pipeline->Close(), absl::OkStatus());
  EXPECT_TRUE(absl::IsFailedPrecondition(
      pipeline->Submit(Direction::kForward, RequestOf(sent[0]), outcomes.For(3))));
}

TEST(Pipeline, ClosesWithoutARequest) {
  FakeServer server(EchoUnary, EchoAll);
  EXPECT_EQ(MustCreate({.target = server.target()})->OpenPipeline()->Close(), absl::OkStatus());
}

TEST(Pipeline, MessagesAboveOneMebibyteAreAnnouncedExactly) {
  std::vector<int64_t> announced, sizes;
  FakeServer server(EchoUnary, [&](auto*, ServerStream* stream) {
    RunRequest request;
    while (ReadMessage(stream, &request)) {
      if (request.content_case() == RunRequest::kNextMessageBytes) {
        announced.push_back(request.next_message_bytes());
        const std::string id = request.id();
        EXPECT_TRUE(ReadMessage(stream, &request));
        EXPECT_EQ(request.id(), id);
        sizes.push_back(static_cast<int64_t>(request.ByteSizeLong()));
      } else {
        EXPECT_LE(request.ByteSizeLong(), 1u << 20);
      }
      WriteMessage(stream, EchoRun(request));
    }
    return grpc::Status::OK;
  });
  const auto client = MustCreate({.target = server.target()});
  const auto pipeline = client->OpenPipeline();
  Outcomes outcomes;
  const auto large = Values(1 << 20), small = Values(200'000), edge = Values((1 << 18) - 4);
  int index = 0;
  for (const auto* q : {&large, &small, &large, &edge, &small}) {
    ASSERT_TRUE(pipeline->Submit(Direction::kForward, RequestOf(*q), outcomes.For(index++)).ok());
  }
  EXPECT_EQ(pipeline->Close(), absl::OkStatus());
  EXPECT_EQ(outcomes.values().size(), 5u);
  EXPECT_EQ(announced.size(), 3u);
  EXPECT_EQ(announced, sizes);
}

TEST(Pipeline, RefusalsForLackOfRoomAreRetriedAndOtherErrorsReturned) {
  std::atomic<int> messages{0};
  FakeServer server(EchoUnary, [&](auto*, ServerStream* stream) {
    RunRequest request;
    std::map<std::string, int> seen;
    while (ReadRequest(stream, &request)) {
      ++messages;
      const int attempt = ++seen[request.id()];
      const float kind = reinterpret_cast<const float*>(request.raw(0).data())[0];
      if (kind == 0 && attempt == 1) {
        WriteMessage(stream, Refuse(request, grpc::StatusCode::RESOURCE_EXHAUSTED, "full", false));
      } else if (kind == 1) {
        WriteMessage(stream, Refuse(request, grpc::StatusCode::RESOURCE_EXHAUSTED, "huge", true));
      } else if (kind == 2) {
        WriteMessage(stream, Refuse(request, grpc::StatusCode::INVALID_ARGUMENT, "a\nb", false));
      } else if (kind == 3) {
        WriteMessage(stream, Refuse(request, grpc::StatusCode::UNAVAILABLE, "drains", false));
      } else {
        WriteMessage(stream, EchoRun(request));
      }
    }
    return grpc::Status::OK;
  });
  const auto client = MustCreate({.target = server.target(), .max_attempts = 2});
  const auto pipeline = client->OpenPipeline();
  Outcomes outcomes;
  std::vector<std::vector<float>> sent;
  for (int i = 0; i < 5; ++i) sent.push_back(Values(400'000, static_cast<float>(i)));
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(pipeline->Submit(Direction::kForward, RequestOf(sent[i]), outcomes.For(i)).ok());
  }
  EXPECT_EQ(pipeline->Close(), absl::OkStatus());
  EXPECT_THAT(outcomes.statuses(),
              ElementsAre(Pair(0, absl::OkStatus()), Pair(1, absl::ResourceExhaustedError("huge")),
                          Pair(2, absl::InvalidArgumentError("a\nb")),
                          Pair(3, absl::UnavailableError("drains")), Pair(4, absl::OkStatus())));
  EXPECT_THAT(outcomes.values(), ElementsAre(Pair(0, sent[0]), Pair(4, sent[4])));
  EXPECT_EQ(messages, 7);
}

TEST(Pipeline, SubmitWaitsForRoomButNotInACallback) {
  FakeServer server(EchoUnary, EchoAll);
  const auto client = MustCreate({.target = server.target()});
  const auto pipeline = client->OpenPipeline({.max_in_flight = 2});
  const auto q = Values(10);
  std::atomic<int> in_flight{0}, most_in_flight{0}, answered{0};
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(pipeline
                    ->Submit(Direction::kForward, RequestOf(q),
                             [&](const auto& reply) {
                               EXPECT_TRUE(reply.ok());
                               --in_flight;
                               ++answered;
                             })
                    .ok());
    most_in_flight = std::max<int>(most_in_flight, ++in_flight);
  }
  EXPECT_LE(most_in_flight, 3);  // two, and one whose callback is about to run
  std::atomic<int> left{50};
  Callback next = [&](const absl::StatusOr<Reply>& reply) {
    EXPECT_TRUE(reply.ok());
    if (--left == 0) return;
    EXPECT_TRUE(pipeline->Submit(Direction::kForward, RequestOf(q), next).ok());
  };
  ASSERT_TRUE(pipeline->Submit(Direction::kForward, RequestOf(q), next).ok());
  EXPECT_TRUE(Eventually([&] { return left == 0; }));
  EXPECT_EQ(pipeline->Close(), absl::OkStatus());
  EXPECT_EQ(answered, 100);
}

TEST(Pipeline, ManyThreadsSubmit) {
  FakeServer server(EchoUnary, EchoAll);
  const auto client = MustCreate({.target = server.target()});
  const auto pipeline = client->OpenPipeline({.max_in_flight = 8});
  std::vector<std::vector<float>> sent;
  for (int i = 0; i < 200; ++i) sent.push_back(Values(1 + i * 29, static_cast<float>(i)));
  Outcomes outcomes;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = t; i < 200; i += 4) {
        EXPECT_TRUE(
            pipeline->Submit(Direction::kForward, RequestOf(sent[i]), outcomes.For(i)).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pipeline->Close(), absl::OkStatus());
  EXPECT_EQ(outcomes.size(), 200u);
  auto values = outcomes.values();
  for (int i = 0; i < 200; ++i) EXPECT_EQ(values[i], sent[i]) << i;
}

}  // namespace
}  // namespace attnd::client
