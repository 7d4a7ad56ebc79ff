// Patterns store no more than planned, whatever the data, and compute the rest correctly.
#include <gtest/gtest.h>

#include <ctime>
#include <numeric>
#include <random>

#include "kernels/pattern/builder.h"
#include "kernels/pattern/cache.h"
#include "kernels/pattern/predicates/coordinates.h"
#include "kernels/pattern/predicates/sets.h"
#include "kernels/pattern/predicates/windows.h"
#include "kernels/pattern/shapes/blocks.h"
#include "kernels/pattern/shapes/etc.h"
#include "kernels/pattern/shapes/grids.h"
#include "kernels/pattern/shapes/lists.h"
#include "kernels/pattern/shapes/longformer.h"
#include "kernels/pattern/shapes/reformer.h"
#include "kernels/pattern/shapes/second_keys.h"
#include "kernels/pattern/shapes/strided.h"
#include "kernels/pattern/shapes/windows.h"
#include "kernels/pattern/spec.h"
#include "tests/pattern/pattern_check.h"

namespace attnd {
namespace {

std::vector<int32_t> RandomIds(int64_t n, int32_t ids, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> drawn(static_cast<size_t>(n));
  for (int32_t& id : drawn) id = static_cast<int32_t>(random() % static_cast<uint32_t>(ids));
  return drawn;
}

Pattern SegmentsOf(const std::vector<int32_t>& ids) {
  const auto n = static_cast<int64_t>(ids.size());
  return Build({.Nq = n, .Nk = n, .visible = SameSegment(ids, ids)});
}

int64_t PlannedBytes(int64_t N) { return CostOf(N, N, {}).bytes; }

// Symptom: random segment ids of 65536 rows took 1 GB, 512 bytes for each of a million tiles.
TEST(PatternComputed, RandomIdsTakeBytesInProportionToRows) {
  constexpr int64_t kN = 65536;
  for (const int32_t ids : {2, 8, 1000, int32_t{kN}}) {
    const Pattern pattern = SegmentsOf(RandomIds(kN, ids, 1));
    EXPECT_LT(BytesOf(pattern), PlannedBytes(kN)) << ids;
    EXPECT_LT(BytesOf(pattern), 256 * kN) << ids;
    EXPECT_FALSE(pattern.counts_pairs);
  }
}

// Many runs instead of masks: rows of tiles that see every other tile, and empty rows between.
TEST(PatternComputed, AlternatingTilesTakeBytesInProportionToRows) {
  constexpr int64_t kN = 65536;
  std::vector<int32_t> stripes(kN), holes(kN);
  for (int64_t i = 0; i < kN; ++i) {
    stripes[i] = static_cast<int32_t>(i / kTile % 2);
    holes[i] = i / kTile % 2 == 0 ? 7 : -1;
  }
  EXPECT_LT(BytesOf(SegmentsOf(stripes)), PlannedBytes(kN));
  EXPECT_LT(BytesOf(SegmentsOf(holes)), PlannedBytes(kN));
  // Every row of tiles differs from its neighbours.
  const Pattern rows = Build({.Nq = kN, .Nk = kN, .visible = Queries([] {
                                                    std::vector<int32_t> slots;
                                                    for (int32_t i = 0; i < kN; i += 2 * kTile)
                                                      slots.push_back(i);
                                                    return slots;
                                                  }())});
  EXPECT_LT(BytesOf(rows), PlannedBytes(kN));
}

TEST(PatternComputed, SmallBlocksTakeNoMoreThanTheBytesOfTheirLists) {
  constexpr int64_t kN = 2048;
  const std::vector<int32_t> layout = RandomIds(kN * kN, 2, 5);
  const Visible blocks = Blocks(BlocksOfLayout(layout, kN, 1, 1));
  const Pattern pattern = Build({.Nq = kN, .Nk = kN, .visible = blocks});
  EXPECT_LT(BytesOf(pattern), PlannedBytes(kN) + 40 * kN * kN);
}

// Processor seconds, the least of three runs.
template <class Work>
double LeastSeconds(const Work& work) {
  double least = 1e9;
  for (int turn = 0; turn < 3; ++turn) {
    const std::clock_t start = std::clock();
    work();
    least = std::min(least, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  return least;
}

// Symptom: a permutation of as many blocks as positions took 3 s at 65536 rows, and 16 times that
// for four times as many.
TEST(PatternComputed, BuildTimeGrowsWithRows) {
  const auto ids = [](int64_t N) {
    return LeastSeconds([&] { SegmentsOf(RandomIds(N, 1000, 1)); });
  };
  const auto blocks = [](int64_t N) {
    std::vector<int32_t> perm(static_cast<size_t>(N));
    std::iota(perm.begin(), perm.end(), 0);
    std::shuffle(perm.begin(), perm.end(), std::mt19937(1));
    const PatternSeq seq{.Nq = N, .Nk = N, .lengths = {N, N}};
    return LeastSeconds([&] { BlockwiseSource(seq, perm).build(); });
  };
  // Of so many more rows that caches, which take up to three times as long when they overflow, are
  // far from what squares of the rows take, 256.
  constexpr int64_t kN = 1 << 14;
  EXPECT_LT(ids(16 * kN), 80 * ids(kN));
  EXPECT_LT(blocks(16 * kN), 80 * blocks(kN));
}

// Sorted ids need few masks: all are stored.
TEST(PatternComputed, SortedIdsAreKept) {
  std::vector<int32_t> ids = RandomIds(65536, 50, 3);
  std::sort(ids.begin(), ids.end());
  const Pattern pattern = SegmentsOf(ids);
  EXPECT_TRUE(pattern.counts_pairs);
  EXPECT_EQ(pattern.computed_masks, nullptr);
  int64_t pairs = 0;
  for (int32_t id = 0; id < 50; ++id) {
    const int64_t n = std::count(ids.begin(), ids.end(), id);
    pairs += n * n;
  }
  EXPECT_EQ(pattern.visible_pairs, pairs);
}

// More masks and runs than are stored: both directions show the same pairs.
TEST(PatternComputed, BothDirectionsShowTheSamePairs) {
  constexpr int64_t kN = 1400;
  for (const int32_t ids : {2, 40, int32_t{kN}}) {
    const std::vector<int32_t> id = RandomIds(kN, ids, 9);
    const Pattern pattern = SegmentsOf(id);
    ASSERT_NE(pattern.computed_masks, nullptr);
    ASSERT_NO_FATAL_FAILURE(
        ExpectIs(pattern, kN, kN, [&](int64_t i, int64_t j) { return id[i] == id[j]; }));
  }
}

// Key tiles of very different rows are computed as a whole.
TEST(PatternComputed, KeyTilesOfManyRunsShowTheSamePairs) {
  constexpr int64_t kN = 2000;
  std::vector<int32_t> holes(kN);
  for (int64_t i = 0; i < kN; ++i) holes[i] = i / kTile % 2 == 0 ? 7 : -1;
  PatternBuilder builder(kN, kN, {.runs = 2});
  builder.Add(SameSegment(holes, holes));
  const Pattern pattern = std::move(builder).Build();
  ASSERT_NO_FATAL_FAILURE(ExpectIs(
      pattern, kN, kN, [&](int64_t i, int64_t j) { return holes[i] == 7 && holes[j] == 7; }));
}

}  // namespace
}  // namespace attnd
