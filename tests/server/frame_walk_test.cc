// Frames of HTTP/2, received in pieces of all sizes.
#include "server/frame_walk.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/frames.h"

namespace attnd {
namespace {

TEST(FrameWalk, CountsStreamsInAnyPieces) {
  const std::string bytes =
      absl::StrCat(Preface(), Frame(4, 0, 0), Frame(kHeadersFrame, kEndHeaders, 1, "ab"),
                   Frame(kDataFrame, 0, 1, Prefix(3) + "xyz"), Frame(6, 0, 0, std::string(8, 'p')),
                   Frame(kHeadersFrame, 0, 3, "a"), Frame(kContinuationFrame, kEndHeaders, 3, "b"),
                   // Trailers open no stream.
                   Frame(kHeadersFrame, kEndHeaders | kEndStream, 1, "t"),
                   Frame(kResetFrame, 0, 3, "0000"), Frame(kHeadersFrame, kEndHeaders, 9, ""));
  for (const size_t piece : {1, 2, 3, 7, 10, 1000}) {
    FrameWalk walk;
    EXPECT_EQ(Walk(&walk, bytes, piece), "");
    EXPECT_EQ(walk.streams(), 3) << piece;
    EXPECT_EQ(walk.message_bytes(), 0);
  }
}

TEST(FrameWalk, CountsFramesThatCarryNothing) {
  FrameWalk walk;
  const auto counts = [&walk](const std::string& bytes) {
    const FrameCounts before = walk.frames();
    EXPECT_EQ(Walk(&walk, bytes, 5), "");
    return std::pair(walk.frames().control - before.control, walk.frames().small - before.small);
  };
  using Pair = std::pair<int64_t, int64_t>;
  EXPECT_EQ(counts(Preface()), Pair(0, 0));
  // SETTINGS, PRIORITY, GOAWAY and an unknown one; a large one counts several times.
  EXPECT_EQ(counts(Frame(4, 0, 0) + Frame(4, 0, 0, std::string(60, 's'))), Pair(2, 0));
  EXPECT_EQ(counts(Frame(4, 0, 0, std::string(16384, 's'))), Pair(129, 0));
  EXPECT_EQ(counts(Frame(2, 0, 1, "12345") + Frame(7, 0, 0, "12345678") + Frame(99, 0, 0)),
            Pair(3, 0));
  EXPECT_EQ(counts(Frame(6, 0, 0, "12345678") + Frame(8, 0, 0, "1234") + Frame(3, 0, 1, "1234")),
            Pair(0, 3));
  EXPECT_EQ(counts(Frame(kHeadersFrame, kEndHeaders, 1, "h")), Pair(0, 0));
  EXPECT_EQ(counts(Frame(kHeadersFrame, kEndHeaders, 1, "h")), Pair(1, 0));
  EXPECT_EQ(counts(Frame(kDataFrame, 0, 1) + Frame(kDataFrame, 0, 1, std::string(255, 'd'))),
            Pair(0, 2));
  EXPECT_EQ(counts(Frame(kDataFrame, 0, 1, std::string(256, 'd'))), Pair(0, 0));
}

TEST(FrameWalk, BlocksOfHeadersAreBounded) {
  const std::string full(16384, 'h');
  const auto blocks = [&](int frames, const std::string& payload) {
    std::string bytes = Preface() + Frame(kHeadersFrame, 0, 1, payload);
    for (int i = 1; i < frames; ++i) bytes += Frame(kContinuationFrame, 0, 1, payload);
    FrameWalk walk;
    return Walk(&walk, bytes);
  };
  EXPECT_EQ(blocks(4, full), "");
  EXPECT_EQ(blocks(5, full), "a header block of more than 64 KiB");
  EXPECT_EQ(blocks(16, ""), "");
  EXPECT_EQ(blocks(17, ""), "a header block in more than 16 frames");
  FrameWalk walk;
  EXPECT_EQ(Walk(&walk, Preface()), "");
  // Each block has its own bound; END_HEADERS ends a block.
  for (uint32_t stream = 1; stream < 99; stream += 2) {
    EXPECT_EQ(Walk(&walk, Frame(kHeadersFrame, 0, stream, full)), "");
    EXPECT_EQ(Walk(&walk, Frame(kContinuationFrame, kEndHeaders, stream, full)), "");
  }
  // Refused by its head, before its bytes arrive.
  EXPECT_EQ(Walk(&walk, Frame(kHeadersFrame, 0, 99, std::string(70000, 'h')).substr(0, 9)),
            "a header block of more than 64 KiB");
}

TEST(FrameWalk, ReportsTheSizeOfTheArrivingMessage) {
  FrameWalk walk;
  EXPECT_EQ(Walk(&walk, Preface() + Frame(kHeadersFrame, kEndHeaders, 1)), "");
  // Its prefix is split over two frames with another stream between them.
  Walk(&walk, Frame(kDataFrame, 0, 1, Prefix(300000).substr(0, 2)));
  EXPECT_EQ(walk.message_bytes(), 0);
  Walk(&walk, Frame(kDataFrame, 0, 3, Prefix(70000) + "ab"));
  EXPECT_EQ(walk.message_bytes(), 70000);
  Walk(&walk, Frame(kDataFrame, 0, 1, Prefix(300000).substr(2)));
  EXPECT_EQ(walk.message_bytes(), 300000);
  EXPECT_EQ(walk.other_messages(), std::vector<int64_t>({70000}));
  for (int i = 0; i < 3; ++i) Walk(&walk, Frame(kDataFrame, 0, 1, std::string(100000, 'x')), 999);
  EXPECT_EQ(walk.message_bytes(), 0);
  // The last of several messages in a frame.
  Walk(&walk, Frame(kDataFrame, 0, 1, Prefix(2) + "xy" + Prefix(0) + Prefix(9) + "x"));
  EXPECT_EQ(walk.message_bytes(), 9);
  // The client ends the stream.
  Walk(&walk, Frame(kDataFrame, kEndStream, 1, "x"));
  EXPECT_EQ(walk.message_bytes(), 0);
  Walk(&walk, Frame(kResetFrame, 0, 3, "0000") + Frame(kDataFrame, 0, 3, Prefix(8)));
  EXPECT_EQ(walk.message_bytes(), 8);
}

}  // namespace
}  // namespace attnd
