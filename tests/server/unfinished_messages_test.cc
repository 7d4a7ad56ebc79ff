// Messages that have begun and not ended, found from the frames of both directions.
#include "server/unfinished_messages.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/frame_walk.h"
#include "server/sent_frames.h"
#include "tests/server/frames.h"

namespace attnd {
namespace {

using Bytes = std::vector<int64_t>;
using std::chrono::seconds;

class UnfinishedMessagesTest : public testing::Test {
 protected:
  UnfinishedMessagesTest() { Read(Preface()); }

  void Read(const std::string& bytes, size_t piece = 1 << 30) {
    EXPECT_EQ(Walk(&walk_, bytes, piece), "");
  }
  void Send(const std::string& bytes, size_t piece = 1 << 30) {
    for (size_t at = 0; at < bytes.size(); at += piece) {
      const size_t size = std::min(piece, bytes.size() - at);
      sent_.Take({reinterpret_cast<const std::byte*>(bytes.data()) + at, size}, &walk_.messages());
    }
  }
  void Open(uint32_t stream) { Read(Frame(kHeadersFrame, kEndHeaders, stream)); }
  // Receives `arrived` bytes of a message of `bytes`, in frames of 16 KiB.
  void Begin(uint32_t stream, int64_t bytes, int64_t arrived, size_t piece = 1 << 30) {
    Read(Frame(kDataFrame, 0, stream, Prefix(static_cast<uint32_t>(bytes))), piece);
    GoOn(stream, arrived, piece);
  }
  void GoOn(uint32_t stream, int64_t bytes, size_t piece = 1 << 30) {
    for (; bytes > 0; bytes -= 16384) {
      const auto size = static_cast<size_t>(std::min<int64_t>(bytes, 16384));
      Read(Frame(kDataFrame, 0, stream, std::string(size, 'x')), piece);
    }
  }
  // The result of calls once a second up to `at`.
  Bytes OverdueAt(int at, int patience = 30) {
    const auto start = UnfinishedMessages::TimePoint();
    for (; at_ < at; ++at_) (void)walk_.messages().Overdue(start + seconds(at_), seconds(patience));
    return walk_.messages().Overdue(start + seconds(at), seconds(patience));
  }

  FrameWalk walk_;
  SentFrames sent_;
  int at_ = 0;
};

// Regression: 1024 unfinished messages held a GiB for ever.
TEST_F(UnfinishedMessagesTest, AreOverdueOnceTheyHaveHadTheirTime) {
  for (const uint32_t stream : {1, 3, 5, 7}) Open(stream);
  Begin(1, 1 << 20, 500000, /*piece=*/7);
  Begin(3, 1 << 20, 65536);  // as much as an unread stream may receive
  Begin(5, 1 << 20, 100000);
  EXPECT_EQ(OverdueAt(29), Bytes());
  Begin(7, 1 << 20, 200000);
  EXPECT_EQ(OverdueAt(30), Bytes({500000, 100000}));
  // A message that arrives too slowly is overdue, too; one that ends is not.
  GoOn(1, 1);
  GoOn(5, (1 << 20) - 100000);
  EXPECT_EQ(OverdueAt(31), Bytes({500001}));
  EXPECT_EQ(OverdueAt(60), Bytes({500001, 200000}));
}

TEST_F(UnfinishedMessagesTest, EachMessageOfAStreamHasItsTime) {
  Open(1);
  Begin(1, 200000, 100000);
  EXPECT_EQ(OverdueAt(20), Bytes());
  // The end of one message and the start of the next in one frame.
  Read(
      Frame(kDataFrame, 0, 1, std::string(100000, 'x') + Prefix(200000) + std::string(70000, 'y')));
  EXPECT_EQ(OverdueAt(49), Bytes());
  EXPECT_EQ(OverdueAt(51), Bytes({70000}));
}

TEST_F(UnfinishedMessagesTest, AFrameThatDoesNotEndHoldsOne) {
  Open(1);
  const std::string whole = Frame(kDataFrame, 0, 1, Prefix(1 << 20) + std::string(1 << 20, 'x'));
  Read(whole.substr(0, 300000), 4096);
  EXPECT_EQ(OverdueAt(0), Bytes());
  Read(whole.substr(300000, 100000), 4096);
  const Bytes overdue = OverdueAt(30);
  ASSERT_EQ(overdue.size(), 1u);
  EXPECT_GT(overdue[0], 390000);
  Read(whole.substr(400000), 4096);
  EXPECT_TRUE(walk_.messages().empty());
}

TEST_F(UnfinishedMessagesTest, StreamsThatTheClientEndsHaveNone) {
  for (const uint32_t stream : {1, 3, 5}) {
    Open(stream);
    Begin(stream, 1 << 20, 100000);
  }
  Read(Frame(kResetFrame, 0, 1, "0000"));
  Read(Frame(kDataFrame, kEndStream, 3, "x"));
  EXPECT_EQ(walk_.messages().Sizes(0), Bytes({1 << 20}));
  Read(Frame(kHeadersFrame, kEndStream | kEndHeaders, 5, "trailers"));
  EXPECT_TRUE(walk_.messages().empty());
}

// A client whose call is refused in the middle of its message does not end the stream itself.
TEST_F(UnfinishedMessagesTest, StreamsThatTheServerEndsHaveNone) {
  const std::string sent = absl::StrCat(
      Frame(4, 0, 0, std::string(30, 's')), Frame(kHeadersFrame, kEndHeaders, 3, "h"),
      Frame(kDataFrame, 0, 3, std::string(300, kEndStream)),
      Frame(kHeadersFrame, kEndHeaders | kEndStream, 1, "t"), Frame(kResetFrame, 0, 5, "0000"));
  for (const size_t piece : {1, 2, 9, 10, 1000}) {
    FrameWalk walk;
    SentFrames frames;
    EXPECT_EQ(Walk(&walk, Preface()), "");
    for (const uint32_t stream : {1, 3, 5}) {
      Walk(&walk, Frame(kHeadersFrame, kEndHeaders, stream));
      Walk(&walk, Frame(kDataFrame, 0, stream, Prefix(1000 + stream) + "begin"));
    }
    for (size_t at = 0; at < sent.size(); at += piece) {
      const size_t size = std::min(piece, sent.size() - at);
      frames.Take({reinterpret_cast<const std::byte*>(sent.data()) + at, size}, &walk.messages());
    }
    EXPECT_EQ(walk.messages().Sizes(0), Bytes({1003})) << piece;
    // Bytes on their way arrive later.
    Walk(&walk, Frame(kDataFrame, 0, 5, "more") + Frame(kDataFrame, 0, 1, Prefix(2000) + "more"));
    EXPECT_EQ(walk.messages().Sizes(0), Bytes({1003})) << piece;
  }
}

// Otherwise ended streams could make others look ended.
TEST_F(UnfinishedMessagesTest, OldStreamsAndNewOnesAreNotMistakenForEachOther) {
  Open(1);
  for (uint32_t stream = 3; stream < 30000; stream += 2) {
    Open(stream);
    Send(Frame(kHeadersFrame, kEndStream | kEndHeaders, stream));
  }
  Begin(1, 1 << 20, 100000);
  EXPECT_EQ(walk_.messages().Sizes(0), Bytes({1 << 20}));
  // The end of an old stream does not end a new one at the same place.
  Open(30001);
  Open(30001 + 8192);
  Send(Frame(kResetFrame, 0, 30001, "0000"));
  Begin(30001 + 8192, 3 << 20, 100000);
  EXPECT_EQ(walk_.messages().Sizes(0), Bytes({1 << 20, 3 << 20}));
}

}  // namespace
}  // namespace attnd
