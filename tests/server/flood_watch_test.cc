// Detection of more bytes than calls expect, and of frames that no honest client sends.
#include "server/flood_watch.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "server/connections.h"

namespace attnd {
namespace {

constexpr int64_t kMiB = 1 << 20;

class FloodWatchTest : public testing::Test {
 protected:
  FloodWatchTest() {
    options_.most_streams = 8;
    options_.found = [this](const FloodWatch::Flood& flood) { floods_.push_back(flood); };
    options_.cut_off = [this](const Connection&, absl::string_view reason) {
      reason_ = std::string(reason);
    };
    Read("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  }

  bool Read(std::string bytes) {
    iovec piece{bytes.data(), bytes.size()};
    return watch_.OnRead({&piece, 1}, static_cast<int64_t>(bytes.size()));
  }

  // Receives `bytes` of a message of the first stream, which has 4 GiB.
  bool Receive(int64_t bytes) {
    if (!has_begun_) Read(Frame(0, 1, std::string("\0\xff\xff\xff\xff", 5)));
    has_begun_ = true;
    for (; bytes > 0; bytes -= kMiB) {
      if (!Read(Frame(0, 1, std::string(kMiB - 9, 'x')))) return false;
    }
    return true;
  }

  bool Open(uint32_t stream) { return Read(Frame(1, stream, "")); }

  static std::string Frame(char type, uint32_t stream, const std::string& payload) {
    const size_t size = payload.size();
    std::string frame;
    for (const size_t byte : {size >> 16, size >> 8, size}) frame += static_cast<char>(byte);
    frame += {type, type == 1 ? '\4' : '\0', 0};
    for (const int shift : {16, 8, 0}) frame += static_cast<char>(stream >> shift);
    return frame + payload;
  }

  const std::shared_ptr<Connection> connection_ = std::make_shared<Connection>();
  FloodWatch::Options options_;
  FloodWatch watch_{connection_.get(), &options_};
  std::vector<FloodWatch::Flood> floods_;
  std::string reason_;
  bool has_begun_ = false;
};

// Bytes that calls expect are no flood; unused expectations are not saved up.
TEST_F(FloodWatchTest, AFloodIsMoreThanCallsExpect) {
  connection_->expected += 100 * kMiB;
  EXPECT_TRUE(Receive(100 * kMiB + FloodWatch::kSlackBytes - kMiB));
  EXPECT_TRUE(floods_.empty());
  EXPECT_TRUE(Receive(kMiB));
  ASSERT_EQ(floods_.size(), 1u);
  EXPECT_EQ(floods_[0].message_bytes, 0xffffffff);
  EXPECT_EQ(floods_[0].connection, connection_);
  EXPECT_TRUE(FloodWatch::IsFlooding(*connection_, floods_[0].lowest));
  // The message has arrived and was read.
  connection_->Settle(100 * kMiB, 120 * kMiB);
  EXPECT_FALSE(FloodWatch::IsFlooding(*connection_, floods_[0].lowest));
  connection_->is_suspected = false;
  // A call that is cancelled before it has sent anything leaves no allowance behind.
  connection_->expected += 500 * kMiB;
  connection_->Settle(500 * kMiB, 500 * kMiB);
  EXPECT_TRUE(Receive(FloodWatch::kSlackBytes + 2 * kMiB));
  EXPECT_EQ(floods_.size(), 2u);
}

TEST_F(FloodWatchTest, CallsWithTheirDeclaredMessagesAreNoSuspects) {
  using Indices = std::vector<size_t>;
  const auto suspects = [](std::vector<int64_t> expected, int64_t bytes,
                           std::vector<int64_t> others) {
    return FloodWatch::Suspects(expected, {.message_bytes = bytes, .other_messages = others});
  };
  EXPECT_EQ(suspects({900, 100}, 300, {}), Indices({1}));
  EXPECT_EQ(suspects({200, 100}, 300, {}), Indices({0, 1}));
  EXPECT_EQ(suspects({200, 100}, 300, {200}), Indices({1}));
  // One of the two calls sends another message than it declared.
  EXPECT_EQ(suspects({200, 200, 100}, 300, {200}), Indices({0, 1, 2}));
  EXPECT_EQ(suspects({200, 200, 100}, 300, {200, 200}), Indices({2}));
  // The message that was arriving has ended: one of the others may be the flood.
  EXPECT_EQ(suspects({500, 200, 100}, 0, {100, 300}), Indices({1}));
  EXPECT_EQ(suspects({200, 100}, 0, {}), Indices());
}

TEST_F(FloodWatchTest, IsReportedOnceAndGoesOnForAWhileOnly) {
  EXPECT_TRUE(Receive(FloodWatch::kSlackBytes + FloodWatch::kMostAheadBytes));
  EXPECT_EQ(floods_.size(), 1u);
  EXPECT_FALSE(Receive(2 * kMiB));
  EXPECT_EQ(reason_, "more than calls expect");
  EXPECT_TRUE(watch_.is_cut_off());
}

TEST_F(FloodWatchTest, AsLongAsFloodsAreCheckedItGoesOn) {
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(Receive(FloodWatch::kSlackBytes));
    connection_->is_suspected = false;
  }
  EXPECT_GE(floods_.size(), 10u);
  EXPECT_EQ(reason_, "");
}

TEST_F(FloodWatchTest, StreamsWithoutCallsAreBounded) {
  uint32_t stream = 1;
  // The limit of open streams plus the forgiven ones; one more is cut off at once.
  const int64_t some = options_.most_streams + ClientStreams::kMostUnseenEnds;
  for (int64_t i = 0; i < some; ++i, stream += 2) EXPECT_TRUE(Open(stream));
  int64_t more = 0;
  for (; more < 100000 && Open(stream); stream += 2) ++more;
  EXPECT_LT(more, 100000);
  EXPECT_EQ(reason_, "more streams at a time than the limit");
}

TEST_F(FloodWatchTest, CallsThatStayOpenAreBounded) {
  uint32_t stream = 1;
  const auto open = [&] {
    connection_->calls += 1;
    stream += 2;
    return Open(stream);
  };
  for (int i = 0; i < 100000; ++i) {
    ASSERT_TRUE(open());
    connection_->EndCall();
  }
  int64_t more = 0;
  for (; more < 100000 && open();) ++more;
  EXPECT_GE(more, 2 * options_.most_streams);
  EXPECT_LT(more, 100000);
}

// Regression: 80 MiB of such frames reached gRPC before a limit applied, two seconds of work for
// the polling thread.
TEST_F(FloodWatchTest, FramesThatCarryNothingAreBounded) {
  const std::string reason = "more frames that carry nothing than its calls need";
  std::string some;
  for (int i = 0; i < 1000; ++i) some += Frame(8, 0, "1234");
  // Sent and received bytes earn as many as libraries need.
  connection_->sent += int64_t{1} << 30;
  for (int i = 0; i < 260; ++i) ASSERT_TRUE(Read(some)) << i;
  // None of a million more reaches gRPC, however long they take.
  std::string many;
  for (int i = 0; i < 1000; ++i) many += some;
  EXPECT_FALSE(Read(std::move(many)));
  EXPECT_EQ(reason_, reason);
  EXPECT_TRUE(watch_.is_cut_off());
}

TEST_F(FloodWatchTest, AStreamOfSmallRequestsMayGoOn) {
  Open(1);
  const std::string message = Frame(0, 1, std::string("\0\0\0\0\1x", 6));
  for (int i = 0; i < 1000000; ++i) {
    connection_->Sends(10);
    ASSERT_TRUE(Read(message)) << i;
    connection_->Settle(0, 6);
  }
}

// Each connection is within its own limit, but all of them exceed that of the client.
TEST_F(FloodWatchTest, StreamsOfAllConnectionsOfAClientAreBounded) {
  std::vector<std::shared_ptr<Connection>> connections;
  std::vector<std::unique_ptr<FloodWatch>> watches;
  const auto fill = [&] {
    connections.push_back(std::make_shared<Connection>());
    connections.back()->streams = connection_->streams;
    connections.back()->calls = options_.most_streams;
    connection_->streams->AddConnections(1);
    watches.push_back(std::make_unique<FloodWatch>(connections.back().get(), &options_));
    std::string bytes = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for (uint32_t i = 0; i < options_.most_streams; ++i) bytes += Frame(1, 2 * i + 1, "");
    iovec piece{bytes.data(), bytes.size()};
    return watches.back()->OnRead({&piece, 1}, std::ssize(bytes));
  };
  for (int i = 0; i < FloodWatch::kFullConnections; ++i) EXPECT_TRUE(fill());
  const int64_t most = FloodWatch::kFullConnections * options_.most_streams;
  EXPECT_EQ(connection_->streams->open(), most);
  connection_->streams->AddConnections(1);
  // A connection with few streams stays, and not because streams are forgiven.
  EXPECT_TRUE(Open(1));
  EXPECT_EQ(connection_->streams->open(), most + 1);
  int more = 0;
  for (; more < 100000 && fill();) ++more;
  EXPECT_LT(more, 100000);
  // Closing the connections removes their streams.
  watches.clear();
  EXPECT_LE(connection_->streams->open(), 1);
}

// The process's own recvmsg, as gRPC calls it.
TEST_F(FloodWatchTest, NothingReachesTheReaderAfterTheReason) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  WatchSocket(ends[0], &watch_);
  std::string into(100, 0);
  iovec piece{into.data(), into.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  const std::string good = Frame(1, 1, "abc"), bad = Frame(9, 3, "").replace(0, 3, 3, '\xff');
  ASSERT_EQ(send(ends[1], good.data(), good.size(), 0), std::ssize(good));
  EXPECT_EQ(recvmsg(ends[0], &message, 0), std::ssize(good));
  EXPECT_EQ(into.substr(0, good.size()), good);
  ASSERT_EQ(send(ends[1], bad.data(), bad.size(), 0), std::ssize(bad));
  EXPECT_EQ(recvmsg(ends[0], &message, 0), -1);
  EXPECT_EQ(errno, ECONNRESET);
  EXPECT_EQ(reason_, "a header block of more than 64 KiB");
  ASSERT_EQ(send(ends[1], good.data(), good.size(), 0), std::ssize(good));
  EXPECT_EQ(recvmsg(ends[0], &message, 0), -1);
  WatchSocket(ends[0], nullptr);
  EXPECT_EQ(recvmsg(ends[0], &message, 0), std::ssize(good));
  for (const int end : ends) close(end);
}

}  // namespace
}  // namespace attnd
