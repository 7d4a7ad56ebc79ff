#include "kernels/core/copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <vector>

namespace attnd {
namespace {

constexpr std::byte kUntouched{0xAA};

std::vector<std::byte> Counted(size_t bytes) {
  std::vector<std::byte> values(bytes);
  for (size_t i = 0; i < bytes; ++i) values[i] = static_cast<std::byte>(i * 37 % 251);
  return values;
}

TEST(Copy, StreamedAtEveryOffsetAndSmallSize) {
  const std::vector<std::byte> from = Counted(400);
  for (size_t offset = 0; offset < 64; ++offset) {
    for (size_t bytes = 0; bytes < 260; ++bytes) {
      alignas(64) std::byte to[400];
      std::fill(std::begin(to), std::end(to), kUntouched);
      const size_t from_offset = (offset * 7 + bytes) % 64;
      StreamedCopy(to + offset, from.data() + from_offset, bytes);
      for (size_t i = 0; i < sizeof to; ++i) {
        const bool copied = i >= offset && i < offset + bytes;
        ASSERT_EQ(to[i], copied ? from[from_offset + i - offset] : kUntouched)
            << "at " << i << ", offset " << offset << ", bytes " << bytes;
      }
    }
  }
}

// Pieces shorter than a line, empty ones and long ones, on both sides of the threshold.
TEST(Copy, PiecesInOrder) {
  for (const size_t whole : {size_t{0}, size_t{1}, size_t{100'000}, kStreamedBytes - 1,
                             kStreamedBytes, kStreamedBytes + 12'345}) {
    const std::vector<std::byte> from = Counted(whole);
    std::vector<std::span<const std::byte>> pieces;
    const size_t lengths[] = {1, 0, 63, 65'000, 64, 0, 700, 1'000'003};
    size_t at = 0;
    for (size_t i = 0; at < whole; ++i) {
      const size_t bytes = std::min(lengths[i % std::size(lengths)], whole - at);
      pieces.emplace_back(from.data() + at, bytes);
      at += bytes;
    }
    std::vector<std::byte> to(whole + 2, kUntouched);
    CopyPieces(pieces, to.data() + 1);
    EXPECT_EQ(to.front(), kUntouched);
    EXPECT_EQ(to.back(), kUntouched);
    EXPECT_TRUE(std::equal(from.begin(), from.end(), to.begin() + 1)) << whole;
  }
}

}  // namespace
}  // namespace attnd
