// Blocking calls: what travels, deadlines, errors, ways to connect.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <string>

#include "tests/client_cpp/fake_server.h"
#include "tests/client_cpp/sample.h"

namespace attnd::client {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

TEST(Client, ForwardReturnsTensorsAndStats) {
  FakeServer server(EchoUnary);
  const auto client = MustCreate({.target = server.target()});
  for (const int64_t n : {0, 1, 1000, 3'000'000}) {
    const auto q = Values(n);
    const auto reply = client->Forward(RequestOf(q));
    ASSERT_TRUE(reply.ok()) << reply.status();
    ASSERT_EQ(reply->tensors().size(), 1u);
    const ReplyTensor* out = reply->Find("out");
    ASSERT_NE(out, nullptr);
    EXPECT_EQ(out->shape, (std::vector<int64_t>{1, 1, n, 1}));
    EXPECT_EQ(out->ToVector<float>(), q);
    EXPECT_EQ(reply->stats().device(), "fake");
    EXPECT_EQ(reply->Find("lse"), nullptr);
  }
}

TEST(Client, RepliesHaveTheNotesOfTheServer) {
  FakeServer server([](grpc::ServerContext*, const std::string& request, std::string* reply) {
    attn::v1::ForwardRequest parsed;
    EXPECT_TRUE(parsed.ParseFromString(request));
    attn::v1::ForwardReply answer = Echo(parsed);
    answer.add_notes("local: block has no effect unless granularity is block");
    *reply = answer.SerializeAsString();
    return grpc::Status::OK;
  });
  const auto q = Values(4);
  const auto reply = MustCreate({.target = server.target()})->Forward(RequestOf(q));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->notes(),
            (std::vector<std::string>{"local: block has no effect unless granularity is block"}));
}

TEST(Client, MetadataSayTheExactSizeAndTheToken) {
  std::multimap<std::string, std::string> seen;
  size_t bytes = 0;
  FakeServer server([&](grpc::ServerContext* context, const std::string& request, auto* reply) {
    bytes = request.size();
    for (const auto& [key, value] : context->client_metadata()) {
      seen.emplace(std::string(key.data(), key.size()), std::string(value.data(), value.size()));
    }
    return EchoUnary(context, request, reply);
  });
  const auto q = Values(5000);
  ASSERT_TRUE(
      MustCreate({.target = server.target(), .token = "secret"})->Forward(RequestOf(q)).ok());
  EXPECT_THAT(seen, Contains(Pair("attnd-message-bytes", std::to_string(bytes))));
  EXPECT_THAT(seen, Contains(Pair("authorization", "Bearer secret")));

  seen.clear();
  ASSERT_TRUE(MustCreate({.target = server.target()})->Forward(RequestOf(q)).ok());
  EXPECT_EQ(seen.count("authorization"), 0u);
}

TEST(Client, ErrorsCarryCodeAndEveryLine) {
  FakeServer server([](auto*, const std::string&, auto*) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "local: a\nlocal: b, got -1");
  });
  const auto q = Values(1);
  const auto reply = MustCreate({.target = server.target()})->Forward(RequestOf(q));
  EXPECT_EQ(reply.status(), absl::InvalidArgumentError("local: a\nlocal: b, got -1"));
}

TEST(Client, DeadlineOfClientAndOfCall) {
  FakeServer server([](grpc::ServerContext* context, const std::string&, auto*) {
    while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return grpc::Status::CANCELLED;
  });
  const auto q = Values(1);
  const std::chrono::milliseconds soon{30};
  const auto hasty = MustCreate({.target = server.target(), .timeout = soon});
  EXPECT_TRUE(absl::IsDeadlineExceeded(hasty->Forward(RequestOf(q)).status()));
  const auto patient = MustCreate({.target = server.target(), .timeout = kLong});
  EXPECT_TRUE(absl::IsDeadlineExceeded(patient->Forward(RequestOf(q), {.timeout = soon}).status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(patient->ServerInfo({.timeout = soon}).status()));
  const CallOptions past = {.timeout = std::chrono::nanoseconds::min()};
  EXPECT_TRUE(absl::IsDeadlineExceeded(patient->Forward(RequestOf(q), past).status()));
}

TEST(Client, TheLongestTimeoutDoesNotOverflow) {
  FakeServer server(EchoUnary);
  const auto q = Values(1);
  const auto client = MustCreate({.target = server.target()});
  EXPECT_TRUE(client->Forward(RequestOf(q), {.timeout = std::chrono::nanoseconds::max()}).ok());
}

TEST(Client, UnixSocket) {
  const std::string address =
      "unix:" + testing::TempDir() + "attnd_client_" + std::to_string(getpid()) + ".sock";
  FakeServer server(EchoUnary, nullptr, address);
  const auto q = Values(100'000);
  const auto reply = MustCreate({.target = address})->Forward(RequestOf(q));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(FloatsOf(*reply), q);
}

TEST(Client, NoServerListens) {
  const auto client = MustCreate({.target = "127.0.0.1:1", .max_attempts = 1});
  const auto q = Values(1);
  EXPECT_TRUE(absl::IsUnavailable(client->Forward(RequestOf(q)).status()));
}

// Where a connection to `target` fails first, by the text of the error; a proxy is set.
std::string FailureAt(const std::string& target) {
  const ClientOptions options = {.target = target, .timeout = kLong, .max_attempts = 1};
  return std::string(MustCreate(options)->Forward(RequestOf(Values(1))).status().message());
}

TEST(Client, NoProxyStandsBeforeTheLoopback) {
  // http_proxy caught `ipv4:127.0.0.1`, `dns:///localhost`, `0.0.0.0`. Nothing listens anywhere.
  setenv("http_proxy", "http://127.0.0.7:7", 1);
  for (const char* name : {"no_proxy", "no_grpc_proxy", "grpc_proxy", "https_proxy"}) {
    unsetenv(name);
  }
  for (const char* target :
       {"127.0.0.1:9", "localhost:9", "LocalHost.:9", "0.0.0.0:9", "ipv4:127.0.0.1:9",
        "ipv4:127.0.0.2:9,127.0.0.1:9", "dns:localhost:9", "dns:///localhost:9",
        "dns:///127.0.0.1:9", "[::1]:9", "[::]:9", "[::ffff:127.0.0.1]:9", "ipv6:[::1]:9",
        "ipv6:%5B::1%5D:9", "dns:///[::1]:9", "unix:/no/such.sock", "unix:///no/such.sock"}) {
    EXPECT_THAT(FailureAt(target), Not(HasSubstr("127.0.0.7:7"))) << target;
  }
  for (const char* target : {"localhost.example:9", "128.0.0.1:9", "dns:///192.0.2.1:9",
                             "ipv4:127.0.0.1:9,192.0.2.1:9", "[2001:db8::1]:9"}) {
    EXPECT_THAT(FailureAt(target), HasSubstr("127.0.0.7:7")) << target;
  }
}

TEST(Client, AnswersThatAreNoReplyAreErrors) {
  std::string answer;
  FakeServer server([&](auto*, const std::string&, std::string* reply) {
    *reply = answer;
    return grpc::Status::OK;
  });
  const auto client = MustCreate({.target = server.target()});
  const auto q = Values(1);
  attn::v1::ForwardReply lacks_payload;
  lacks_payload.add_tensors()->set_name("out");
  lacks_payload.mutable_tensors(0)->set_dtype(DType::float32);
  attn::v1::ForwardReply too_short = lacks_payload;
  too_short.mutable_tensors(0)->add_shape(2);
  too_short.mutable_tensors(0)->set_raw_index(0);
  too_short.add_raw("1234");
  const std::map<std::string, std::string> cases = {
      {"\xff", "valid attn.v1.ForwardReply"},
      {"\x7a\x05"
       "ab",
       "cut off"},
      {lacks_payload.SerializeAsString(), "out has no payload"},
      {too_short.SerializeAsString(), "out must fill its shape [2], got 4 bytes"}};
  for (const auto& [bytes, words] : cases) {
    answer = bytes;
    const absl::Status status = client->Forward(RequestOf(q)).status();
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_THAT(std::string(status.message()), testing::StartsWith("reply: "));
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  }
}

TEST(Client, WrongOptions) {
  EXPECT_EQ(Client::Create({.target = ""}).status(),
            absl::InvalidArgumentError("client: target must be host:port or unix:/path, got none"));
  EXPECT_EQ(Client::Create({.max_attempts = 6}).status(),
            absl::InvalidArgumentError("client: max_attempts must be 1 to 5, got 6"));
  EXPECT_EQ(Client::Create({.spin_us = -1}).status(),
            absl::InvalidArgumentError("client: spin_us must be >= 0, got -1"));
  EXPECT_EQ(Client::Create({.tls_authorities = "/nowhere.pem"}).status(),
            absl::NotFoundError("client: tls_authorities must be a PEM file that can be read, got "
                                "/nowhere.pem"));
}

TEST(Client, SpinningCallsAnswerTheSame) {
  FakeServer server(EchoUnary);
  const auto client = MustCreate({.target = server.target(), .spin_us = 200});
  const auto q = Values(100);
  for (int i = 0; i < 20; ++i) {
    const auto reply = client->Forward(RequestOf(q));
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(FloatsOf(*reply), q);
  }
}

}  // namespace
}  // namespace attnd::client
