// Compressed keys of segments, alone and beside a window, against loops over pairs.
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "kernels/pattern/shapes/compressed.h"
#include "tests/pattern/pattern_parts_check.h"

namespace attnd {
namespace {

using Pairs = std::set<std::pair<int64_t, int64_t>>;

// Pairs of query rows below nq and key rows; slots below `keys` where the order is natural.
Pairs ShownBy(const PatternSource& source, int64_t nq, int64_t keys) {
  Pairs shown;
  const Pattern p = source.build ? source.build() : Pattern();
  for (int64_t i = 0; i < nq; ++i) {
    for (int64_t s = 0; s < (p.key_rows.empty() ? keys : p.Nk); ++s) {
      const bool is_seen =
          !source.build ||
          (TileOf(p, p.by_query, i / kTile, s / kTile)[s % kTile] >> (i % kTile) & 1) != 0;
      if (is_seen) shown.insert({i, p.key_rows.empty() ? s : p.key_rows[s]});
    }
  }
  return shown;
}

TEST(PatternCompressed, AloneAndBesideAWindow) {
  Random random(5);
  for (int round = 0; round < 200; ++round) {
    PatternSeq seq{.Nq = random.Pick(1, 200), .Nk = random.Pick(1, 200), .causal = random.Coin()};
    seq.lengths = {random.Pick(0, seq.Nq), random.Pick(1, seq.Nk)};
    seq.offset = random.Pick(-150, 100);
    const CompressedSegments segments{.length = seq.causal ? random.Pick(1, 70) : seq.Nk,
                                      .rank = random.Pick(1, 70),
                                      .completed = random.Coin()};
    const int64_t l = segments.length, keys = segments.Keys(seq.lengths.nk);
    const Window window{.block = 5, .before = 4, .after = 2, .offset = seq.offset};
    SCOPED_TRACE(testing::Message()
                 << "l " << l << " r " << segments.rank << " offset " << seq.offset << " causal "
                 << seq.causal << segments.completed);
    EXPECT_EQ(keys, (seq.lengths.nk + l - 1) / l * segments.rank);
    Pairs far, both;
    for (int64_t i = 0; i < seq.lengths.nq; ++i) {
      const int64_t p = i + seq.offset, start = p - ((p % 5) + 5) % 5;
      for (int64_t c = 0; c < keys; ++c) {
        const int64_t end = (c / segments.rank + 1) * l;  // of its segment
        // Strict: the segment of p begins at `end` or later.
        const bool is_seen = !seq.causal || (segments.completed ? p >= end - 1 : p >= end);
        if (is_seen) far.insert({i, c}), both.insert({i, seq.Nk + c});
      }
      for (int64_t j = 0; j < seq.lengths.nk; ++j) {
        if (start - 4 <= j && j < start + 7) both.insert({i, j});
      }
    }
    const PatternSource alone = CompressedSource(seq, segments);
    EXPECT_EQ(ShownBy(alone, seq.lengths.nq, keys), far);
    EXPECT_EQ(alone.visible_pairs, static_cast<double>(far.size()));
    const PatternSource beside = WindowAndCompressed(seq, window, segments);
    EXPECT_EQ(ShownBy(beside, seq.lengths.nq, keys), both);
    EXPECT_EQ(beside.visible_pairs, static_cast<double>(both.size()));
    EXPECT_TRUE(beside.gathers);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace attnd
