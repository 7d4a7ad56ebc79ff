// The open connections, and how many one client has.
#include "server/connections.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/listen.h"

namespace attnd {
namespace {

using ::testing::HasSubstr;

// Both ends of a connection; they are closed with it.
struct Pair {
  int ours = -1, theirs = -1;
  Pair(Pair&& other) noexcept
      : ours(std::exchange(other.ours, -1)), theirs(std::exchange(other.theirs, -1)) {}
  Pair(int o, int t) : ours(o), theirs(t) {}
  ~Pair() {
    CloseOurs();
    if (theirs >= 0) close(theirs);
  }
  void CloseOurs() {
    if (ours >= 0) close(std::exchange(ours, -1));
  }
};

Pair Connect(const Listener& listener, const char* to = "127.0.0.1") {
  const int theirs = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<uint16_t>(listener.port));
  inet_pton(AF_INET, to, &name.sin_addr);
  EXPECT_EQ(connect(theirs, reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
  int ours = -1;
  while ((ours = accept(listener.fds[0], nullptr, nullptr)) < 0 && errno == EAGAIN) continue;
  return Pair(ours, theirs);
}

class ConnectionsTest : public testing::Test {
 protected:
  void SetUp() override { listener_ = *ListenOn("127.0.0.1:0"); }
  void TearDown() override { CloseListener(&listener_); }

  Listener listener_;
};

TEST_F(ConnectionsTest, AClientIsItsAddress) {
  const Pair pair = Connect(listener_);
  const auto connection = DescribeConnection(pair.ours);
  ASSERT_NE(connection, nullptr);
  EXPECT_EQ(connection->client, "ipv4:127.0.0.1");
  EXPECT_EQ(connection->peer.rfind("ipv4:127.0.0.1:", 0), 0u);
  EXPECT_FALSE(IsUnixClient(connection->client));
  EXPECT_EQ(DescribeConnection(-1), nullptr);
}

TEST(Connections, AnIpv4AddressOfAnIpv6SocketIsThatClient) {
  Listener listener = *ListenOn("0.0.0.0:0");
  const Pair pair = Connect(listener);
  EXPECT_EQ(DescribeConnection(pair.ours)->client, "ipv4:127.0.0.1");
  CloseListener(&listener);
}

TEST(Connections, EachConnectionOfAUnixSocketIsAClient) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const Pair pair(ends[0], ends[1]);
  const auto one = DescribeConnection(ends[0]), other = DescribeConnection(ends[1]);
  EXPECT_TRUE(IsUnixClient(one->client));
  EXPECT_NE(one->client, other->client);
}

TEST_F(ConnectionsTest, LimitsInTotalAndOfAClient) {
  Connections connections({.total = 3, .per_client = 2});
  std::vector<Pair> pairs;
  for (int i = 0; i < 3; ++i) pairs.push_back(Connect(listener_));
  EXPECT_TRUE(connections.Add(DescribeConnection(pairs[0].ours)).ok());
  EXPECT_TRUE(connections.Add(DescribeConnection(pairs[1].ours)).ok());
  const absl::Status status = connections.Add(DescribeConnection(pairs[2].ours));
  EXPECT_EQ(status, absl::ResourceExhaustedError(
                        "connection: ipv4:127.0.0.1 has 2 already, which is the limit of one "
                        "client; share them between calls"));
  auto stranger = std::make_shared<Connection>(), another = std::make_shared<Connection>();
  stranger->fd = 901;
  another->fd = 902;
  EXPECT_TRUE(connections.Add(stranger).ok());
  EXPECT_EQ(connections.counts().open, 3);
  // The stranger's descriptor is not open: Add removes it when it finds no place.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(connections.Add(another).ok());
  EXPECT_EQ(connections.counts().refused, 1);
  EXPECT_EQ(connections.counts().accepted, 4);
}

TEST_F(ConnectionsTest, ThePlaceOfOneThatWasClosedIsFreeAgain) {
  Connections connections({.total = 3, .per_client = 2});
  std::vector<Pair> pairs;
  const auto add = [&] {
    pairs.push_back(Connect(listener_));
    return connections.Add(DescribeConnection(pairs.back().ours));
  };
  EXPECT_TRUE(add().ok());
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(add().ok()) << i;
    EXPECT_TRUE(absl::IsResourceExhausted(add())) << i;
    connections.Remove(pairs[pairs.size() - 2].ours);
  }
  EXPECT_EQ(connections.counts().open, 1);
}

TEST(Connections, ANumberThatIsGivenAgainIsAnotherConnection) {
  Connections connections({.total = 8, .per_client = 1});
  for (const char* client : {"ipv4:10.0.0.1", "ipv4:10.0.0.2", "ipv4:10.0.0.1"}) {
    auto connection = std::make_shared<Connection>();
    connection->fd = 901;
    connection->client = client;
    EXPECT_TRUE(connections.Add(connection).ok()) << client;
    EXPECT_EQ(connections.Find("fd:901")->client, client);
    EXPECT_EQ(connections.counts().open, 1);
  }
}

// Regression: a client that reconnected after a cut-off got new allowances of streams and frames.
TEST(Connections, AReconnectingClientKeepsItsUsedAllowances) {
  Connections connections({.total = 8, .per_client = 8});
  const auto come = [&](const char* client) {
    auto connection = std::make_shared<Connection>();
    connection->fd = 901;
    connection->client = client;
    EXPECT_TRUE(connections.Add(connection).ok());
    return connection;
  };
  const auto first = come("ipv4:10.0.0.1");
  connections.Remove(901);
  connections.Sweep();
  const auto again = come("ipv4:10.0.0.1"), other = come("ipv4:10.0.0.2");
  EXPECT_EQ(again->frames, first->frames);
  EXPECT_EQ(again->streams, first->streams);
  EXPECT_NE(other->frames, first->frames);
  // Connections of Unix sockets take turns as clients of their own, but share frames.
  const auto one = come("unix:1"), two = come("unix:2");
  EXPECT_EQ(one->frames, two->frames);
  EXPECT_NE(one->streams, two->streams);
}

TEST_F(ConnectionsTest, TheTotalIsLimited) {
  Connections connections({.total = 2, .per_client = 8});
  std::vector<Pair> pairs;
  for (int i = 0; i < 3; ++i) pairs.push_back(Connect(listener_));
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(connections.Add(DescribeConnection(pairs[i].ours)).ok()) << i;
  }
  EXPECT_EQ(
      connections.Add(DescribeConnection(pairs[2].ours)),
      absl::ResourceExhaustedError("connection: this server has 2 already, which is its limit"));
  EXPECT_EQ(connections.counts().open, 2);
}

TEST_F(ConnectionsTest, OneThatWasClosedIsForgotten) {
  Connections connections({.total = 8, .per_client = 8});
  Pair pair = Connect(listener_);
  const std::string name = absl::StrCat("fd:", pair.ours);
  ASSERT_TRUE(connections.Add(DescribeConnection(pair.ours)).ok());
  EXPECT_NE(connections.Find(name), nullptr);
  pair.CloseOurs();
  connections.Sweep();
  EXPECT_EQ(connections.counts().open, 0);
  EXPECT_EQ(connections.Find(name), nullptr);
  EXPECT_EQ(connections.Find("ipv4:127.0.0.1:80"), nullptr);
}

TEST(Listen, ErrorsOfAddresses) {
  Listener first = *ListenOn("127.0.0.1:0");
  EXPECT_EQ(
      ListenOn(first.address).status(),
      absl::UnavailableError("cannot listen on " + first.address + ": Address already in use"));
  CloseListener(&first);
  EXPECT_TRUE(ListenOn(first.address).ok());
  for (const char* address : {"no.such.host.invalid:1", "192.0.2.1:0", "nonsense"}) {
    const absl::Status status = ListenOn(address).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << address;
    EXPECT_THAT(std::string(status.message()), HasSubstr("cannot listen on ")) << address;
  }
  Listener name = *ListenOn("localhost:0");
  EXPECT_EQ(name.address, absl::StrCat("localhost:", name.port));
  CloseListener(&name);
}

}  // namespace
}  // namespace attnd
