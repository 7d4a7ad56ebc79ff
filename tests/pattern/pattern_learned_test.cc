// Patterns that follow from data or have a second source of keys: ETC, compressed keys.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "kernels/pattern/builder.h"
#include "kernels/pattern/orders.h"
#include "kernels/pattern/predicates/coordinates.h"
#include "kernels/pattern/predicates/windows.h"
#include "kernels/pattern/shapes/etc.h"
#include "kernels/pattern/shapes/second_keys.h"
#include "kernels/pattern/shapes/strided.h"
#include "kernels/pattern/shapes/windows.h"
#include "tests/pattern/pattern_parts_check.h"

namespace attnd {
namespace {

PatternSeq Whole(int64_t n) { return {.Nq = n, .Nk = n, .lengths = {n, n}}; }

TEST(PatternEtc, HalvesAndBothWithLabels) {
  Random random(1);
  for (int round = 0; round < 60; ++round) {
    const int64_t sizes[] = {1, 3, 63, 64, 65, 130, 257};
    const int64_t N = sizes[random.Pick(0, 6)];
    PatternSeq seq = Whole(N);
    if (random.Coin()) seq.lengths = {random.Pick(0, N), random.Pick(0, N)};
    Etc etc{.ng = random.Pick(0, N), .radius = random.Pick(1, 90)};
    if (random.Coin()) etc.ng = std::min<int64_t>(etc.ng, 5);
    etc.hard_l2g = random.Coin();
    etc.hard_g2l = random.Coin();
    etc.is_labelled = random.Coin();
    etc.max_distance = random.Pick(0, 100);
    std::vector<int32_t> sentences;
    if (random.Coin() && etc.ng > 0) sentences = random.Numbers(N - etc.ng, 0, etc.ng - 1, true);
    etc.sentence_ids = sentences;
    const int64_t ng = etc.ng, k = etc.max_distance;
    const auto sentence_of = [&](int64_t x) {
      return sentences.empty() ? (x - ng) * ng / (N - ng) : sentences[x - ng];
    };
    SCOPED_TRACE(testing::Message() << "ng " << ng << " radius " << etc.radius << " hard "
                                    << etc.hard_l2g << etc.hard_g2l << " k " << k);
    const PatternSource longs = EtcSource(seq, etc, Half::kLocal),
                        globals = EtcSource(seq, etc, Half::kGlobal);
    const PatternSource both = EtcSource(seq, etc, Half::kBoth);
    const auto sees = [&](int64_t i, int64_t j) {
      if (i < ng) return j < ng || !etc.hard_g2l || sentence_of(j) == i;
      return j >= ng ? std::abs(i - j) <= etc.radius : !etc.hard_l2g || sentence_of(i) == j;
    };
    ASSERT_NO_FATAL_FAILURE(ExpectParts(seq, {longs, globals}, sees));
    ASSERT_NO_FATAL_FAILURE(ExpectParts(seq, {both}, sees));
    for (const PatternSource* half : {&longs, &globals, &both}) {
      const Pattern p = half->build();
      EXPECT_EQ(!p.terms.empty(), etc.is_labelled && p.visible_pairs > 0);
      for (int64_t i = 0; i < (etc.is_labelled ? N : 0); ++i) {
        for (int64_t j = 0; j < N; ++j) {
          const TileMask mask = TileOf(p, p.by_query, i / kTile, j / kTile);
          if ((mask[j % kTile] >> (i % kTile) & 1) == 0) continue;
          const int32_t terms = TermsOf(p.by_query, i / kTile, j / kTile);
          ASSERT_NE(terms, Run::kNoTerms);
          int64_t label = j >= i ? std::min(j - i, k) : k + std::min(i - j, k);
          if ((i < ng) != (j < ng)) {
            label = 2 * k + 1 + (sentence_of(std::max(i, j)) == std::min(i, j));
          }
          ASSERT_EQ(p.terms[terms].labels[j % kTile * kTile + i % kTile], label) << i << "," << j;
        }
      }
    }
  }
  const Etc check{.ng = 3, .radius = 2};
  const auto pairs = [](const Etc& etc) {
    return EtcSource(Whole(15), etc, Half::kLocal).build().visible_pairs +
           EtcSource(Whole(15), etc, Half::kGlobal).build().visible_pairs;
  };
  EXPECT_EQ(pairs(check), 135);
  EXPECT_EQ(pairs({.ng = 3, .radius = 2, .hard_g2l = true}), 111);
}

TEST(PatternEtc, LabelsOfALongSequenceAreFew) {
  // Given 16384 long tokens and one global tile: labels differ near the diagonal only.
  const Etc etc{.ng = 64, .radius = 84, .is_labelled = true};
  const Pattern longs = EtcSource(Whole(64 + 16384), etc, Half::kLocal).build();
  // Five distances between tiles; a sentence is four tiles of tokens.
  EXPECT_EQ(longs.terms.size(), 5u + 64u);
  // Global rows: one label for all other sentences; tiles of the row's sentence within
  // StoredLimits.
  const Pattern globals = EtcSource(Whole(64 + 16384), etc, Half::kGlobal).build();
  EXPECT_EQ(globals.by_query.runs.size(), 65u);
  EXPECT_LE(globals.terms.size(), 64u);
}

TEST(PatternSecondKeys, CompressedSegmentsAndSortedBlocks) {
  Random random(3);
  for (int round = 0; round < 100; ++round) {
    PatternSeq seq{.Nq = random.Pick(0, 200), .Nk = random.Pick(0, 200), .causal = false};
    seq.lengths = {random.Pick(0, seq.Nq), random.Pick(0, seq.Nk)};
    seq.offset = random.Pick(-20, 100);
    const int64_t l = random.Pick(1, 70), r = random.Pick(1, 9);
    const int64_t shift = random.Pick(0, 1), lo = random.Coin() ? -BlockSteps::kAll : 0;
    const int64_t segments = (seq.Nk + l - 1) / l;
    SecondKeys second;
    for (int64_t c = 0; c < segments * r; ++c) {
      second.rows.push_back(c % 7 == 3 ? -1 : static_cast<int32_t>(seq.Nk + c));
    }
    const BlockSteps steps{.bq = l, .bk = r, .lo = lo, .hi = shift, .offset = seq.offset};
    second.visible = BlockDiagonal(steps);
    std::optional<Window> local;
    if (random.Coin()) local = Window{.before = 9, .after = 3, .offset = seq.offset};
    PatternSource source = WithSecondKeys(seq, local, second);
    const Pattern p = source.build();
    EXPECT_TRUE(source.gathers);
    SCOPED_TRACE(testing::Message() << source.key << " of " << seq.Nk);
    std::set<std::pair<int64_t, int64_t>> shown, expected;
    for (int64_t s = 0; s < p.Nq; ++s) {
      for (int64_t t = 0; t < p.Nk; ++t) {
        const TileMask mask = TileOf(p, p.by_query, s / kTile, t / kTile);
        if ((mask[t % kTile] >> (s % kTile) & 1) != 0) shown.insert({s, p.key_rows[t]});
      }
    }
    for (int64_t i = 0; i < seq.lengths.nq; ++i) {
      const int64_t q = i + seq.offset, u = FloorDivide(q, l);
      for (int64_t j = 0; local.has_value() && j < seq.lengths.nk; ++j) {
        if (q - 9 <= j && j <= q + 3) expected.insert({i, j});
      }
      for (int64_t c = 0; c < segments * r; ++c) {
        const int64_t t = c / r;
        if (c % 7 != 3 && t < u + shift && (lo != 0 || t >= u)) expected.insert({i, seq.Nk + c});
      }
    }
    ASSERT_EQ(shown, expected);
  }
}

// Moves the segment ids -1, 1 and 2 to the ends of int32.
std::vector<int32_t> AtTheEnds(std::vector<int32_t> ids) {
  for (int32_t& id : ids)
    id = id == -1 ? INT32_MIN : id == 1 ? INT32_MAX - 1 : id == 2 ? INT32_MAX : id;
  return ids;
}

TEST(PatternSegments, AnyOrderAndASecondSource) {
  // Symptom: a query of segment 0 saw keys of segment 2147483647.
  // Given segments over a source in residue order, over one with appended keys, over all pairs.
  Random random(4);
  for (int round = 0; round < 60; ++round) {
    PatternSeq seq = random.Seq(/*square=*/false);
    seq.lengths = {seq.Nq, seq.Nk};
    auto q = random.Numbers(seq.Nq, -1, 2), k = random.Numbers(seq.Nk, -1, 2);
    if (round % 2 == 1) q = AtTheEnds(q), k = AtTheEnds(k);
    const int64_t s = random.Pick(2, 70);
    PatternParts parts = StridedParts(seq, s, Half::kBoth);
    for (PatternSource& part : parts) part = WithinSegments(part, q, k);
    ASSERT_NO_FATAL_FAILURE(ExpectParts(seq, parts, [&](int64_t i, int64_t j) {
      const int64_t d = i + seq.offset - j;
      return (std::abs(d) < s || d % s == 0) && q[i] >= 0 && q[i] == k[j];
    }));
    const PatternSource all = BandSource(seq.Nq, seq.Nk, kUnbounded, kUnbounded);
    seq.causal = false;
    ASSERT_NO_FATAL_FAILURE(
        ExpectParts(seq, {WithinSegments(all, q, k)},
                    [&](int64_t i, int64_t j) { return q[i] >= 0 && q[i] == k[j]; }));
    const SecondKeys second{.rows = {static_cast<int32_t>(seq.Nk)}, .visible = nullptr};
    const Pattern p = WithinSegments(WithSecondKeys(seq, Window{}, second), q, k).build();
    for (int64_t i = 0; i < seq.Nq; ++i) {
      const TileMask mask = TileOf(p, p.by_query, i / kTile, (p.Nk - 1) / kTile);
      ASSERT_EQ(mask[(p.Nk - 1) % kTile] >> (i % kTile) & 1, q[i] >= 0) << i;
    }
  }
}

}  // namespace
}  // namespace attnd
