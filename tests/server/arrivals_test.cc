// Transport::CancelStalled ends streams whose messages have begun and do not arrive.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "server/transport.h"
#include "tests/server/frames.h"

namespace attnd {
namespace {

using std::chrono::seconds;

struct Record {
  std::atomic<int> calls{0}, overdue{0};
  int64_t upload_bytes = 64 << 10;
  std::string text;  // polling thread
};

class Listening final : public Handler {
 public:
  explicit Listening(Record* record) : record_(record) {}
  void OnHeaders(Rpc& rpc) override {
    record_->calls += 1;
    rpc.ReadUnannounced();
  }
  void OnMessage(Rpc& rpc, const grpc::ByteBuffer* message) override {
    message == nullptr ? rpc.Close(absl::OkStatus()) : rpc.ReadUnannounced();
  }
  void OnOverdue(Rpc& rpc, const absl::Status& status) override {
    record_->overdue += 1;
    record_->text = std::string(status.message());
    rpc.Close(status);
  }

 private:
  Record* const record_;
};

// A call with a time limit of its own: a read without Handler::OnOverdue.
class Uploading final : public Handler {
 public:
  Uploading(Record* record, std::shared_ptr<Rpc>* rpc) : record_(record), rpc_(rpc) {}
  void OnHeaders(Rpc& rpc) override {
    *rpc_ = rpc.shared_from_this();
    record_->calls += 1;
    rpc.Expect(record_->upload_bytes);
    rpc.Read();
  }
  void OnMessage(Rpc& rpc, const grpc::ByteBuffer*) override { rpc.Finish(absl::OkStatus()); }

 private:
  Record* const record_;
  std::shared_ptr<Rpc>* const rpc_;
};

// A client that sends half a message and nothing else, within its flow-control windows.
class HalfClient {
 public:
  explicit HalfClient(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_port = htons(static_cast<uint16_t>(port));
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
    Write(Preface() + Frame(4, 0, 0));
  }
  ~HalfClient() { close(fd_); }

  void Open(uint32_t stream, const std::string& path) {
    std::string block;
    const std::pair<std::string, std::string> fields[] = {
        {":method", "POST"}, {":scheme", "http"}, {":path", path},
        {":authority", "x"}, {"te", "trailers"},  {"content-type", "application/grpc"}};
    for (const auto& [name, value] : fields) {
      block += '\0';  // literal, not indexed
      block += static_cast<char>(name.size()) + name;
      block += static_cast<char>(value.size()) + value;
    }
    Write(Frame(kHeadersFrame, kEndHeaders, stream, block));
  }
  void Bring(uint32_t stream, const std::string& data) {
    for (size_t at = 0; at < data.size(); at += 16384) {
      const std::string part = data.substr(at, 16384);
      const auto size = static_cast<int64_t>(part.size());
      while (std::min(Window(0), Window(stream)) < size) ASSERT_TRUE(TakeFrame());
      windows_[0] -= size;
      windows_[stream] -= size;
      Write(Frame(kDataFrame, 0, stream, part));
    }
    // The server answers it after it has read everything before.
    Write(Frame(kPingFrame, 0, 0, std::string(8, 'p')));
    for (pings_ += 1; pings_ > 0;) ASSERT_TRUE(TakeFrame());
  }
  // Waits until the server ends the stream.
  void WaitForEnd(uint32_t stream) {
    while (ended_ != stream) ASSERT_TRUE(TakeFrame());
  }

 private:
  void Write(const std::string& bytes) {
    EXPECT_EQ(send(fd_, bytes.data(), bytes.size(), 0), std::ssize(bytes));
  }
  int64_t Window(uint32_t stream) { return windows_.try_emplace(stream, 65535).first->second; }
  bool TakeFrame() {
    FrameHead head;
    if (!Take(head.bytes.data(), 9)) return false;
    std::string payload(static_cast<size_t>(head.payload_bytes()), '\0');
    if (!payload.empty() && !Take(payload.data(), payload.size())) return false;
    if (head.type() == kHeadersFrame && head.has(kEndStream)) ended_ = head.stream();
    if (head.type() == kPingFrame && head.has(/*acknowledgement*/ 1)) pings_ -= 1;
    if (head.type() != kWindowUpdateFrame) return true;
    uint32_t more = 0;
    std::memcpy(&more, payload.data(), sizeof more);
    (void)Window(head.stream());
    windows_[head.stream()] += ntohl(more);
    return true;
  }
  bool Take(void* bytes, size_t size) {
    return recv(fd_, bytes, size, MSG_WAITALL) == static_cast<ssize_t>(size);
  }

  const int fd_;
  std::map<uint32_t, int64_t> windows_;
  uint32_t ended_ = 0;
  int pings_ = 0;  // not answered yet
};

class ArrivalsTest : public testing::Test {
 protected:
  void SetUp() override {
    MethodTable methods;
    methods["/test/Listen"] = [this] { return std::make_unique<Listening>(&record_); };
    methods["/test/Upload"] = [this] { return std::make_unique<Uploading>(&record_, &upload_); };
    auto transport = Transport::Start({.addresses = {"127.0.0.1:0"}}, std::move(methods));
    ASSERT_TRUE(transport.ok()) << transport.status();
    transport_ = *std::move(transport);
  }
  void TearDown() override { upload_ = nullptr; }

  void WaitForCalls(int calls) {
    for (int i = 0; i < 60000 && record_.calls < calls; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_EQ(record_.calls, calls);
  }
  // The number of calls that got OnOverdue up to then.
  int OverdueAfter(seconds time, bool is_short = false) {
    transport_->CancelStalled(start_ + time, is_short);
    std::promise<void> looked;
    transport_->Post([&] { looked.set_value(); });
    looked.get_future().wait();
    return record_.overdue;
  }

  static std::string Half() { return Prefix(1 << 20) + std::string(300000, 'x'); }

  const TimePoint start_ = std::chrono::steady_clock::now() + seconds(100);
  Record record_;
  std::shared_ptr<Rpc> upload_;
  std::unique_ptr<Transport> transport_;
};

// Regression: streams, which may be silent for any time, held a GiB of unfinished messages for
// ever.
TEST_F(ArrivalsTest, AMessageThatDoesNotFollowEndsItsCall) {
  HalfClient half(transport_->port()), silent(transport_->port());
  half.Open(1, "/test/Listen");
  silent.Open(1, "/test/Listen");
  half.Bring(1, Half());
  WaitForCalls(2);
  EXPECT_EQ(OverdueAfter(seconds(0)), 0);
  EXPECT_EQ(OverdueAfter(seconds(30)), 0);
  EXPECT_EQ(OverdueAfter(seconds(31)), 1);
  half.WaitForEnd(1);
  EXPECT_EQ(record_.text,
            "stream: a message must arrive within 31 s, one of this connection did not, retry "
            "later");
  // The silent stream goes on, and so does a new one on the connection of the ended one.
  half.Open(3, "/test/Listen");
  WaitForCalls(3);
  EXPECT_EQ(OverdueAfter(seconds(100)), 1);
  EXPECT_EQ(OverdueAfter(seconds(10000)), 1);
}

TEST_F(ArrivalsTest, SoonerWhileOthersWait) {
  HalfClient half(transport_->port());
  half.Open(1, "/test/Listen");
  half.Bring(1, Half());
  EXPECT_EQ(OverdueAfter(seconds(0), /*is_short=*/true), 0);
  EXPECT_EQ(OverdueAfter(seconds(4), /*is_short=*/true), 0);
  EXPECT_EQ(OverdueAfter(seconds(5), /*is_short=*/true), 1);
}

// The message of a call with a time limit of its own is not attributed to a stream beside it:
// neither while it is read, nor after the server has ended the call, which its client does not
// confirm.
TEST_F(ArrivalsTest, ASilentStreamBesideAnotherMessageGoesOn) {
  record_.upload_bytes = 1 << 20;
  HalfClient client(transport_->port());
  client.Open(1, "/test/Listen");
  client.Open(3, "/test/Upload");
  client.Bring(3, Half());
  WaitForCalls(2);
  EXPECT_EQ(OverdueAfter(seconds(0)), 0);
  EXPECT_EQ(OverdueAfter(seconds(1000)), 0);
  upload_->Finish(absl::ResourceExhaustedError("too late"));
  client.WaitForEnd(3);
  EXPECT_EQ(OverdueAfter(seconds(1001)), 0);
  EXPECT_EQ(OverdueAfter(seconds(2000)), 0);
  // But its own message is overdue.
  client.Bring(1, Half());
  EXPECT_EQ(OverdueAfter(seconds(3000)), 0);
  EXPECT_EQ(OverdueAfter(seconds(3030)), 0);
  EXPECT_EQ(OverdueAfter(seconds(3031)), 1);
}

// Otherwise a stream could hold a MiB as long as another call of its connection waits.
TEST_F(ArrivalsTest, ACallExplainsNoMoreThanItExpects) {
  HalfClient client(transport_->port());
  client.Open(1, "/test/Listen");
  client.Open(3, "/test/Upload");
  WaitForCalls(2);
  client.Bring(1, Half());
  EXPECT_EQ(OverdueAfter(seconds(0)), 0);
  EXPECT_EQ(OverdueAfter(seconds(30)), 0);
  EXPECT_EQ(OverdueAfter(seconds(31)), 1);
}

}  // namespace
}  // namespace attnd
