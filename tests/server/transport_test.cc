// The completion queue, its calls and their ends, with handlers for tests.
#include "server/transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "grpc/health/v1/health.pb.h"
#include "proto/wire/bytes.h"
#include "server/health.h"
#include "tests/server/rpc_client.h"

namespace attnd {
namespace {

using ::testing::HasSubstr;

constexpr auto kNow = std::chrono::milliseconds(0);
constexpr auto kSoon = std::chrono::seconds(20);

// Calls that wait until the test answers them, as lanes do.
struct Parked {
  std::mutex mu;
  std::vector<std::shared_ptr<Rpc>> calls;
  std::atomic<int> arrived = 0, done = 0, cancelled = 0;

  std::vector<std::shared_ptr<Rpc>> Take() {
    const std::lock_guard lock(mu);
    return std::exchange(calls, {});
  }
};

class ParkedCall final : public Handler {
 public:
  explicit ParkedCall(Parked* parked) : parked_(parked) {}
  void OnHeaders(Rpc& rpc) override { rpc.Read(); }
  void OnMessage(Rpc& rpc, const grpc::ByteBuffer* message) override {
    if (message == nullptr) return rpc.Finish(absl::InvalidArgumentError("no message"));
    const std::lock_guard lock(parked_->mu);
    parked_->calls.push_back(rpc.shared_from_this());
    parked_->arrived += 1;
  }
  void OnDone(Rpc&, bool cancelled) override {
    parked_->cancelled += cancelled ? 1 : 0;
    parked_->done += 1;
  }

 private:
  Parked* const parked_;
};

class EchoCall final : public Handler {
 public:
  void OnHeaders(Rpc& rpc) override { rpc.Read(); }
  void OnMessage(Rpc& rpc, const grpc::ByteBuffer* message) override {
    if (message == nullptr) return rpc.Finish(absl::InvalidArgumentError("no message"));
    // Copies what is small alone: unread_answer_test.cc has the reason.
    if (message->Length() == 5 && TextOf(*message) == "throw") throw std::bad_alloc();
    rpc.Reply(*message);
  }
};

// Answers each message with three, and ends after the client has half-closed.
class TripleCall final : public Handler {
 public:
  void OnHeaders(Rpc& rpc) override { rpc.Read(); }
  void OnMessage(Rpc& rpc, const grpc::ByteBuffer* message) override {
    if (message == nullptr) return rpc.Close(absl::OkStatus());
    for (const char* suffix : {"1", "2", "3"}) rpc.Send(BytesOf(TextOf(*message) + suffix));
    rpc.Read();
  }
};

template <class F>
void WaitUntil(const F& condition) {
  for (int i = 0; i < 60000 && !condition(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_TRUE(condition());
}

class TransportTest : public testing::Test {
 protected:
  void SetUp() override {
    MethodTable methods;
    methods["/test/Echo"] = [] { return std::make_unique<EchoCall>(); };
    methods["/test/Triple"] = [] { return std::make_unique<TripleCall>(); };
    methods["/test/Park"] = [this] { return std::make_unique<ParkedCall>(&parked_); };
    health_.AddMethods(&methods);
    auto transport = Transport::Start({.addresses = {"127.0.0.1:0"}}, std::move(methods));
    ASSERT_TRUE(transport.ok()) << transport.status();
    transport_ = *std::move(transport);
    client_ = std::make_unique<RpcClient>(transport_->addresses()[0]);
  }

  std::future<grpc::Status> CallInBackground(const char* method, grpc::ClientContext* context) {
    return std::async(std::launch::async, [this, method, context] {
      std::string reply;
      return client_->Call(method, "x", &reply, context);
    });
  }

  Parked parked_;
  Health health_{{"test"}};
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<RpcClient> client_;
};

TEST_F(TransportTest, AnswersAndRefuses) {
  std::string reply;
  EXPECT_TRUE(client_->Call("/test/Echo", "hello", &reply).ok());
  EXPECT_EQ(reply, "hello");
  const std::string large(3 << 20, 'x');
  EXPECT_TRUE(client_->Call("/test/Echo", large, &reply).ok());
  EXPECT_EQ(reply, large);
  const grpc::Status unknown = client_->Call("/test/Nothing", "x", &reply);
  EXPECT_EQ(unknown.error_code(), grpc::UNIMPLEMENTED);
  EXPECT_THAT(unknown.error_message(), HasSubstr("/test/Nothing"));
}

TEST_F(TransportTest, AnExceptionEndsItsCallOnly) {
  std::string reply;
  EXPECT_EQ(client_->Call("/test/Echo", "throw", &reply).error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(client_->Call("/test/Echo", "hello", &reply).ok());
}

TEST_F(TransportTest, HalfCloseWithoutMessage) {
  grpc::ClientContext context;
  auto stream = client_->Open("/test/Echo", &context);
  stream->WritesDone();
  EXPECT_EQ(stream->Finish().error_code(), grpc::INVALID_ARGUMENT);
}

TEST_F(TransportTest, CompressedMessagesAreRefused) {
  grpc::ClientContext context;
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  std::string reply;
  const grpc::Status status = client_->Call("/test/Echo", std::string(5000, 'x'), &reply, &context);
  EXPECT_EQ(status.error_code(), grpc::UNIMPLEMENTED) << status.error_message();
}

TEST_F(TransportTest, StreamMessagesLeaveInOrderBeforeTheEnd) {
  grpc::ClientContext context;
  auto stream = client_->Open("/test/Triple", &context);
  std::vector<std::string> expected, seen;
  for (int i = 0; i < 50; ++i) {
    const std::string text = "m" + std::to_string(i) + ".";
    stream->Write(BytesOf(text));
    for (const char* suffix : {"1", "2", "3"}) expected.push_back(text + suffix);
  }
  stream->WritesDone();
  grpc::ByteBuffer message;
  while (stream->Read(&message)) seen.push_back(TextOf(message));
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(seen, expected);
}

TEST_F(TransportTest, AnswersFromAnotherThreadAndOnlyTheFirstCounts) {
  grpc::ClientContext context;
  std::future<grpc::Status> status = CallInBackground("/test/Park", &context);
  WaitUntil([&] { return parked_.arrived == 1; });
  std::thread([&] {
    for (const std::shared_ptr<Rpc>& rpc : parked_.Take()) {
      rpc->Finish(absl::OutOfRangeError("first"));
      rpc->Finish(absl::InternalError("second"));
    }
  }).join();
  EXPECT_EQ(status.get().error_message(), "first");
}

// A second answer to gRPC aborts the process.
TEST_F(TransportTest, OfTwoAnswersTheFirstCountsWhateverTheyAre) {
  for (const bool replies_first : {true, false}) {
    grpc::ClientContext context;
    std::string reply;
    std::future<grpc::Status> status = std::async(
        std::launch::async, [&] { return client_->Call("/test/Park", "x", &reply, &context); });
    WaitUntil([&] { return parked_.arrived == (replies_first ? 1 : 2); });
    const std::vector<std::shared_ptr<Rpc>> calls = parked_.Take();
    if (calls.size() != 1) context.TryCancel();  // `status` waits for the call to end
    ASSERT_EQ(calls.size(), 1u);
    const auto answer = [&](bool replies) {
      replies ? calls[0]->Reply(BytesOf("reply")) : calls[0]->Finish(absl::OutOfRangeError("none"));
    };
    answer(replies_first);
    answer(!replies_first);
    calls[0]->Reply(BytesOf("again"));
    EXPECT_EQ(status.get().error_code(), replies_first ? grpc::OK : grpc::OUT_OF_RANGE);
    EXPECT_EQ(reply, replies_first ? "reply" : "");
  }
}

// Regression: CancelStalled found a call before it was complete, and copied its weak pointer while
// it was set. For the thread sanitizer.
TEST_F(TransportTest, StalledCallsAreLookedForWhileCallsArrive) {
  std::atomic<bool> stop = false;
  std::thread looker([&] {
    while (!stop) transport_->CancelStalled(std::chrono::steady_clock::now());
  });
  std::string reply;
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(client_->Call("/test/Echo", "hello", &reply).ok());
  stop = true;
  looker.join();
}

TEST_F(TransportTest, ASilentConnectionIsClosed) {
  auto quiet = Transport::Start(
      {.addresses = {"127.0.0.1:0"}, .silence = std::chrono::milliseconds(100)}, {});
  ASSERT_TRUE(quiet.ok()) << quiet.status();
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<uint16_t>((*quiet)->port()));
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
  WaitUntil([&] { return (*quiet)->connections().accepted == 1; });
  char byte;
  EXPECT_EQ(recv(fd, &byte, 1, 0), 0);
  close(fd);
  WaitUntil([&] { return (*quiet)->connections().open == 0; });
}

TEST_F(TransportTest, CancellationAndDeadlineReachTheHandler) {
  // Connects before the deadline starts to run, so that the call arrives in time.
  std::string reply;
  ASSERT_TRUE(client_->Call("/test/Echo", "connect", &reply).ok());
  grpc::ClientContext cancelled, late;
  late.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
  std::future<grpc::Status> first = CallInBackground("/test/Park", &cancelled);
  std::future<grpc::Status> second = CallInBackground("/test/Park", &late);
  WaitUntil([&] { return parked_.arrived == 2; });
  cancelled.TryCancel();
  WaitUntil([&] { return parked_.cancelled == 2; });
  for (const std::shared_ptr<Rpc>& rpc : parked_.Take()) rpc->Reply(BytesOf("late"));
  EXPECT_EQ(first.get().error_code(), grpc::CANCELLED);
  EXPECT_EQ(second.get().error_code(), grpc::DEADLINE_EXCEEDED);
}

// An answer that starts after the queue was shut down aborts the process.
TEST_F(TransportTest, TheQueueClosesAfterTheLastAnswer) {
  grpc::ClientContext context;
  std::future<grpc::Status> status = CallInBackground("/test/Park", &context);
  WaitUntil([&] { return parked_.arrived == 1; });
  std::thread lane([&] {
    WaitUntil([&] { return parked_.cancelled == 1; });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    for (const std::shared_ptr<Rpc>& rpc : parked_.Take()) rpc->Reply(BytesOf("late"));
  });
  transport_->StopServing(kNow);
  transport_.reset();
  lane.join();
  EXPECT_EQ(status.get().error_code(), grpc::UNAVAILABLE);
}

TEST_F(TransportTest, StopsWhileCallsArrive) {
  std::atomic<bool> stop = false;
  std::atomic<int> misled = 0;
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      const RpcClient own(transport_->addresses()[0]);
      std::string reply;
      while (!stop) {
        const grpc::StatusCode code = own.Call("/test/Echo", "hello", &reply).error_code();
        // With any other code, such as CANCELLED, the client would not try another server.
        if (code != grpc::OK && code != grpc::UNAVAILABLE) ++misled;
        if (code != grpc::OK) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    });
  }
  WaitUntil([&] { return transport_->calls() > 100; });
  transport_->StopServing(kSoon);
  stop = true;
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(misled, 0);
}

TEST_F(TransportTest, PostRunsOnThePollingThread) {
  std::promise<std::thread::id> first, second;
  transport_->Post([&] { first.set_value(std::this_thread::get_id()); });
  transport_->Post([&] { second.set_value(std::this_thread::get_id()); });
  EXPECT_EQ(first.get_future().get(), second.get_future().get());
}

TEST_F(TransportTest, PortInUse) {
  const auto second = Transport::Start({.addresses = {transport_->addresses()[0]}}, {});
  EXPECT_EQ(second.status().message(), absl::StrCat("cannot listen on ", transport_->addresses()[0],
                                                    ": Address already in use"));
}

TEST_F(TransportTest, HealthFollowsTheServer) {
  using grpc::health::v1::HealthCheckRequest;
  using grpc::health::v1::HealthCheckResponse;
  const char* const kCheck = "/grpc.health.v1.Health/Check";
  const auto check = [&](const std::string& service) {
    HealthCheckRequest request;
    request.set_service(service);
    HealthCheckResponse response;
    std::string reply;
    const grpc::Status status = client_->Call(kCheck, request.SerializeAsString(), &reply);
    if (!status.ok() || !response.ParseFromString(reply))
      return -static_cast<int>(status.error_code());
    return static_cast<int>(response.status());
  };
  const auto next = [](RpcClient::Stream* watch) {
    grpc::ByteBuffer message;
    HealthCheckResponse response;
    if (!watch->Read(&message) || !response.ParseFromString(TextOf(message))) return -1;
    return static_cast<int>(response.status());
  };
  EXPECT_EQ(check(""), HealthCheckResponse::SERVING);
  EXPECT_EQ(check("test"), HealthCheckResponse::SERVING);
  EXPECT_EQ(check("other"), -static_cast<int>(grpc::NOT_FOUND));

  grpc::ClientContext context;
  auto watch = client_->Open("/grpc.health.v1.Health/Watch", &context);
  watch->Write(BytesOf(""));
  watch->WritesDone();
  EXPECT_EQ(next(watch.get()), HealthCheckResponse::SERVING);

  transport_->Post([&] { health_.SetServing(false); });

  EXPECT_EQ(next(watch.get()), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(check("test"), HealthCheckResponse::NOT_SERVING);
  transport_->Post([&] { health_.CloseWatches(); });
  EXPECT_EQ(next(watch.get()), -1);
  EXPECT_EQ(watch->Finish().error_code(), grpc::UNAVAILABLE);
}

// All addresses are listened on, and a spinning thread answers as usual.
TEST(Transport, SeveralAddressesAndASpinningThread) {
  const std::string path = testing::TempDir() + "/attnd_transport_test.sock";
  MethodTable methods;
  methods["/test/Echo"] = [] { return std::make_unique<EchoCall>(); };
  auto transport = Transport::Start(
      {.addresses = {"unix:" + path, "127.0.0.1:0"}, .spin = std::chrono::microseconds(200)},
      methods);
  ASSERT_TRUE(transport.ok()) << transport.status();
  ASSERT_EQ((*transport)->addresses().size(), 2u);
  EXPECT_EQ((*transport)->addresses()[1], absl::StrCat("127.0.0.1:", (*transport)->port()));
  for (const std::string& address : (*transport)->addresses()) {
    std::string reply;
    EXPECT_TRUE(RpcClient(address).Call("/test/Echo", "hello", &reply).ok()) << address;
    EXPECT_EQ(reply, "hello");
  }
  // gRPC would replace the socket file of the other server.
  EXPECT_EQ(Transport::Start({.addresses = {"unix:" + path}}, {}).status(),
            absl::UnavailableError("cannot listen on unix:" + path + ": Address already in use"));
  std::string reply;
  EXPECT_TRUE(RpcClient("unix:" + path).Call("/test/Echo", "still", &reply).ok());

  const std::string long_path = "unix:/" + std::string(200, 'x');
  EXPECT_EQ(Transport::Start({.addresses = {long_path}}, {}).status(),
            absl::InvalidArgumentError("cannot listen on " + long_path +
                                       ": a path has at most 107 bytes, got 201"));
}

}  // namespace
}  // namespace attnd
