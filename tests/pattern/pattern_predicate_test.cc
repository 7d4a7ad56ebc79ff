// Predicates, alone and combined, against their definitions pair by pair.
#include "kernels/pattern/builder.h"
#include "kernels/pattern/cache.h"
#include "kernels/pattern/predicates/coordinates.h"
#include "kernels/pattern/predicates/sets.h"
#include "kernels/pattern/predicates/windows.h"
#include "kernels/pattern/shapes/windows.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "tests/pattern/pattern_parts_check.h"

namespace attnd {
namespace {

// A predicate and its definition.
struct Defined {
  Visible visible;
  Sees sees;
};

Defined RandomWindow(Random& r, int64_t, int64_t) {
  const Window w{.block = r.Pick(0, 2) == 0 ? 1 : r.Pick(2, 150),
                 .before = r.Pick(0, 200),
                 .after = r.Pick(0, 200),
                 .offset = r.Pick(-150, 150),
                 .causal = r.Pick(0, 1) == 1};
  return {Windows(w), [w](int64_t i, int64_t j) {
            const int64_t p = i + w.offset, own = FloorDivide(p, w.block) * w.block;
            return own - w.before <= j && j < own + w.block + w.after && (!w.causal || j <= p);
          }};
}

Defined RandomWithin(Random& r, int64_t Nq, int64_t Nk) {
  Coordinates c{.lo = r.Numbers(Nq, -5, 20),
                .hi = r.Numbers(Nq, -5, 20),
                .x = r.Numbers(Nk, 0, 15, r.Pick(0, 1) == 1)};
  if (r.Pick(0, 1) == 1) std::sort(c.lo.begin(), c.lo.end());
  return {Within(c), [c](int64_t i, int64_t j) { return c.lo[i] <= c.x[j] && c.x[j] <= c.hi[i]; }};
}

Defined RandomSegments(Random& r, int64_t Nq, int64_t Nk) {
  const bool is_sorted = r.Pick(0, 1) == 1;
  const auto q = r.Numbers(Nq, -1, 3, is_sorted), k = r.Numbers(Nk, -1, 3, is_sorted);
  return {SameSegment(q, k), [=](int64_t i, int64_t j) { return q[i] >= 0 && q[i] == k[j]; }};
}

Defined RandomNotAfter(Random& r, int64_t Nq, int64_t Nk) {
  const auto q = r.Numbers(Nq, 0, 300), k = r.Numbers(Nk, 0, 300);
  const int64_t offset = r.Pick(-100, 100);
  return {NotAfter(q, k, offset), [=](int64_t i, int64_t j) { return k[j] <= q[i] + offset; }};
}

Defined RandomSet(Random& r, int64_t Nq, int64_t Nk) {
  const bool of_keys = r.Pick(0, 1) == 1;
  const int64_t n = of_keys ? Nk : Nq;
  // A few slots, or nearly all.
  std::vector<int32_t> slots = r.Numbers(r.Pick(0, 1) == 0 ? 5 : 4 * n, -2, n - 1);
  if (n == 0) slots.clear();
  const std::set<int64_t> set(slots.begin(), slots.end());
  return {of_keys ? Keys(slots) : Queries(slots),
          [=](int64_t i, int64_t j) { return set.count(of_keys ? j : i) != 0; }};
}

Defined RandomBlocks(Random& r, int64_t Nq, int64_t Nk) {
  const int64_t sizes[] = {1, 7, 16, 64, 100, 128};
  const int64_t bq = sizes[r.Pick(0, 5)], bk = sizes[r.Pick(0, 5)];
  const int64_t nbq = (Nq + bq - 1) / bq, nbk = (Nk + bk - 1) / bk;
  std::vector<int32_t> layout(nbq * nbk);
  const int64_t density = r.Pick(0, 10);
  for (int32_t& block : layout) block = r.Pick(0, 10) < density;
  BlockRows rows = BlocksOfLayout(layout, nbk, bq, bk);
  if (nbk == 0) return {Not(Band(-1000, 1000)), [](int64_t, int64_t) { return false; }};
  const int64_t offset_q = r.Pick(0, 1) * r.Pick(-90, 90), offset_k = r.Pick(0, 1) * r.Pick(-9, 99);
  rows.offset_q = offset_q;
  rows.offset_k = offset_k;
  return {Blocks(std::move(rows)), [=](int64_t i, int64_t j) {
            const int64_t t = FloorDivide(i - offset_q, bq), c = FloorDivide(j - offset_k, bk);
            return t >= 0 && t < nbq && c >= 0 && c < nbk && layout[t * nbk + c] != 0;
          }};
}

using Maker = Defined (*)(Random&, int64_t, int64_t);
constexpr Maker kMakers[] = {RandomWindow,   RandomWithin, RandomSegments,
                             RandomNotAfter, RandomSet,    RandomBlocks};

// An expression of up to 2^depth predicates.
Defined RandomPredicate(Random& r, int64_t Nq, int64_t Nk, int depth) {
  if (depth == 0) return kMakers[r.Pick(0, std::size(kMakers) - 1)](r, Nq, Nk);
  const Defined a = RandomPredicate(r, Nq, Nk, depth - 1);
  const Defined b = RandomPredicate(r, Nq, Nk, depth - 1);
  switch (r.Pick(0, 5)) {
    case 0:
      return {And(a.visible, b.visible),
              [=](int64_t i, int64_t j) { return a.sees(i, j) && b.sees(i, j); }};
    case 1:
      return {Or(a.visible, b.visible),
              [=](int64_t i, int64_t j) { return a.sees(i, j) || b.sees(i, j); }};
    case 2:
      return {AndNot(a.visible, b.visible),
              [=](int64_t i, int64_t j) { return a.sees(i, j) && !b.sees(i, j); }};
    case 3:
      return {Not(a.visible), [=](int64_t i, int64_t j) { return !a.sees(i, j); }};
    case 4:
      // Both over all queries; the lower one's come after the upper one's tile.
      return {Over(a.visible, 1, b.visible), [=](int64_t i, int64_t j) {
                return i < kTile ? a.sees(i, j) : b.sees(i - kTile, j);
              }};
    default: {
      // Both over all keys; the right one's come after the left one's two tiles.
      if (Nk < 2 * kTile) return a;
      return {Beside(a.visible, 2, b.visible), [=](int64_t i, int64_t j) {
                return j < 2 * kTile ? a.sees(i, j) : b.sees(i, j - 2 * kTile);
              }};
    }
  }
}

Pattern Built(int64_t Nq, int64_t Nk, const Visible& visible, const StoredLimits& limits = {}) {
  PatternBuilder builder(Nq, Nk, limits);
  builder.Add(visible);
  return std::move(builder).Build();
}

// Once with all tiles stored that fit, once with as many computed as possible.
void ExpectShows(int64_t Nq, int64_t Nk, const Defined& defined) {
  SCOPED_TRACE(testing::Message() << Nq << "x" << Nk << " " << defined.visible->key());
  ASSERT_NO_FATAL_FAILURE(ExpectIs(Built(Nq, Nk, defined.visible), Nq, Nk, defined.sees));
  const StoredLimits none{.runs = 1, .masks = 0, .looks = 0, .terms = 0, .shapes = 0};
  ASSERT_NO_FATAL_FAILURE(ExpectIs(Built(Nq, Nk, defined.visible, none), Nq, Nk, defined.sees));
}

TEST(PatternPredicate, EachAgainstItsDefinition) {
  Random random(1);
  for (const Maker make : kMakers) {
    for (int round = 0; round < 60; ++round) {
      const int64_t Nq = Sizes()[random.Pick(0, 8)], Nk = Sizes()[random.Pick(0, 8)];
      const Defined defined = make(random, Nq, Nk);
      ASSERT_NO_FATAL_FAILURE(ExpectShows(Nq, Nk, defined));
    }
  }
}

TEST(PatternPredicate, ExpressionsAgainstTheirDefinition) {
  Random random(2);
  for (int round = 0; round < 250; ++round) {
    const int64_t Nq = Sizes()[random.Pick(0, 8)], Nk = Sizes()[random.Pick(0, 8)];
    const Defined defined = RandomPredicate(random, Nq, Nk, static_cast<int>(random.Pick(1, 3)));
    ASSERT_NO_FATAL_FAILURE(ExpectShows(Nq, Nk, defined));
  }
}

// Spans marks only full tiles as full and leaves out only empty ones, also within a part of a row.
// A built pattern would not show a wrong mark.
TEST(PatternPredicate, SpansOfAnyRange) {
  Random random(3);
  for (int round = 0; round < 300; ++round) {
    const int64_t Nq = 257, Nk = 640;
    const Defined defined = RandomPredicate(random, Nq, Nk, static_cast<int>(random.Pick(0, 2)));
    SCOPED_TRACE(defined.visible->key());
    const int64_t first = random.Pick(0, 9), last = random.Pick(first, 10);
    for (int64_t q_tile = 0; q_tile < 4; ++q_tile) {
      std::vector<TileSpan> spans;
      defined.visible->Spans(q_tile, first, last, &spans);
      int64_t end = first;
      std::vector<int> verdicts(10, 0);  // 1: edge, 2: full
      for (const TileSpan& span : spans) {
        ASSERT_GE(span.first, end);
        ASSERT_LT(span.first, span.last);
        end = span.last;
        ASSERT_LE(end, last);
        for (int64_t t = span.first; t < end; ++t) verdicts[t] = span.full ? 2 : 1;
      }
      for (int64_t t = first; t < last; ++t) {
        if (verdicts[t] == 1) continue;
        TileMask mask;
        mask.fill(~uint64_t{0});
        defined.visible->Keep(q_tile, t, &mask);
        TileMask expected;
        expected.fill(verdicts[t] == 2 ? ~uint64_t{0} : 0);
        ASSERT_EQ(mask, expected) << "tile " << q_tile << "," << t;
      }
    }
  }
}

TEST(PatternPredicate, IntersectedSourcesCountAfterTheBuild) {
  // Given a causal pattern of two documents, and a sequence of 100 tokens.
  std::vector<int32_t> ids(130, 0);
  std::fill(ids.begin() + 70, ids.end(), 1);
  const PatternSource causal = BandSource(130, 130, kUnbounded, 0, {100, 100});
  const PatternSource source = WithinSegments(causal, ids, ids);
  EXPECT_FALSE(source.is_counted);
  EXPECT_FALSE(source.knows_pairs);
  EXPECT_EQ(source.visible_pairs, 100 * 101 / 2);
  const Pattern pattern = source.build();
  EXPECT_EQ(pattern.visible_pairs, 70 * 71 / 2 + 60 * 61 / 2);
  EXPECT_EQ(CountsOf(pattern, {100, 100}).pairs, 70 * 71 / 2 + 30 * 31 / 2);
  EXPECT_EQ(CountsOf(pattern, {100, 100}).tiles, 3);
  EXPECT_EQ(CountsOf(pattern, {130, 130}).tiles, pattern.visible_tiles);
  EXPECT_NE(source.key, causal.key);
}

TEST(PatternPredicate, DifferentParametersHaveDifferentKeys) {
  // Equal keys of different patterns would serve one request with another's pattern.
  Random random(5);
  std::map<std::string, TileRows> seen;
  for (int round = 0; round < 2000; ++round) {
    const int64_t Nq = random.Pick(60, 70), Nk = random.Pick(60, 70);
    const Defined defined = RandomPredicate(random, Nq, Nk, static_cast<int>(random.Pick(0, 2)));
    const PatternSource source = SourceOf(Nq, Nk, defined.visible, {});
    const Pattern pattern = source.build();
    const auto [place, is_new] = seen.try_emplace(source.key, pattern.by_query);
    if (is_new) continue;
    ASSERT_EQ(place->second.begin, pattern.by_query.begin) << source.key;
    ASSERT_EQ(place->second.runs, pattern.by_query.runs) << source.key;
  }
  const std::vector<int32_t> a = {0, 0, 1}, b = {0, 1, 1};
  EXPECT_EQ(SameSegment(a, a)->key(), SameSegment(a, a)->key());
  EXPECT_NE(SameSegment(a, a)->key(), SameSegment(a, b)->key());
  EXPECT_NE(Keys(a)->key(), Queries(a)->key());
}

}  // namespace
}  // namespace attnd
