// Compares the sources of a method, expanded through their gather orders, with its definition.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/pattern/counts.h"
#include "kernels/pattern/predicates/predicate.h"
#include "kernels/pattern/shapes/seq.h"
#include "tests/pattern/pattern_check.h"

namespace attnd {

inline int64_t FloorDivide(int64_t a, int64_t b) { return a >= 0 ? a / b : -1 - (-1 - a) / b; }
inline int64_t Modulo(int64_t a, int64_t b) { return a - FloorDivide(a, b) * b; }

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int64_t Pick(int64_t lo, int64_t hi) {
    return std::uniform_int_distribution<int64_t>(lo, hi)(engine_);
  }
  bool Coin() { return Pick(0, 1) == 1; }
  std::vector<int32_t> Numbers(int64_t count, int64_t lo, int64_t hi, bool is_sorted = false) {
    std::vector<int32_t> numbers(count);
    for (int32_t& x : numbers) x = static_cast<int32_t>(Pick(lo, hi));
    if (is_sorted) std::sort(numbers.begin(), numbers.end());
    return numbers;
  }
  int64_t Size() { return Sizes()[Pick(0, static_cast<int64_t>(Sizes().size()) - 1)]; }
  // Sizes, lengths, offset. `square`: Nq = Nk without an offset.
  PatternSeq Seq(bool square) {
    PatternSeq seq{.Nq = Size(), .Nk = Size()};
    if (square) seq.Nk = seq.Nq;
    seq.lengths = {seq.Nq, seq.Nk};
    if (Coin()) seq.lengths = {Pick(0, seq.Nq), Pick(0, seq.Nk)};
    if (!square) seq.offset = Coin() ? seq.Nk - seq.Nq : Pick(-150, 150);
    seq.causal = Coin();
    return seq;
  }

 private:
  std::mt19937 engine_;
};

inline std::string ToString(const PatternSeq& seq) {
  return testing::PrintToString(
      std::vector<int64_t>{seq.Nq, seq.Nk, seq.lengths.nq, seq.lengths.nk, seq.offset, seq.causal});
}

// weight[i Nk + j]: the sum of exp(bias) over the slots in which query row i sees key row j.
struct Expanded {
  std::vector<double> weight;
  double pairs = 0;  // of slots
};

// Both directions hold the same pairs, ascending, within the lengths.
inline void AddListed(const PatternSeq& seq, const Pattern& p, Expanded* all) {
  EXPECT_TRUE(p.by_query.begin.empty() && p.query_rows.empty() && p.key_rows.empty());
  std::vector<std::vector<int32_t>> queries(seq.Nk);
  int64_t pairs = 0, again = 0;
  ASSERT_EQ(p.keys_of.begin.size(), static_cast<size_t>(seq.Nq) + 1);
  ASSERT_EQ(p.queries_of.begin.size(), static_cast<size_t>(seq.Nk) + 1);
  for (int64_t i = 0; i < seq.Nq; ++i) {
    for (int64_t at = p.keys_of.begin[i]; at < p.keys_of.begin[i + 1]; ++at) {
      const int64_t j = p.keys_of.columns[at];
      ASSERT_TRUE(i < seq.lengths.nq && j >= 0 && j < seq.lengths.nk);
      const bool is_first = at == p.keys_of.begin[i];
      ASSERT_TRUE(is_first || p.keys_of.columns[at - 1] <= j);
      again += !is_first && p.keys_of.columns[at - 1] == j;
      ++pairs;
      queries[j].push_back(static_cast<int32_t>(i));
      all->weight[i * seq.Nk + j] += 1;
    }
  }
  for (int64_t j = 0; j < seq.Nk; ++j) {
    const std::vector<int32_t> listed(p.queries_of.columns.begin() + p.queries_of.begin[j],
                                      p.queries_of.columns.begin() + p.queries_of.begin[j + 1]);
    ASSERT_EQ(listed, queries[j]);
  }
  EXPECT_EQ(p.visible_pairs, pairs);
  EXPECT_EQ(p.listed_again, again);
  EXPECT_EQ(CountsOf(p, seq.lengths).pairs, static_cast<double>(pairs - again));
  all->pairs += static_cast<double>(pairs);
}

inline void AddPart(const PatternSeq& seq, const PatternSource& source, Expanded* all) {
  SCOPED_TRACE(source.key);
  ASSERT_EQ(source.Nq, seq.Nq);
  ASSERT_EQ(source.Nk, seq.Nk);
  const auto& [nq, nk] = seq.lengths;
  if (source.build == nullptr) {
    for (int64_t i = 0; i < nq; ++i) {
      for (int64_t j = 0; j < nk; ++j) all->weight[i * seq.Nk + j] += 1;
    }
    all->pairs += static_cast<double>(nq * nk);
    return;
  }
  const Pattern p = source.build();
  EXPECT_TRUE(source.gathers || (p.query_rows.empty() && p.key_rows.empty()));
  ASSERT_EQ(source.is_listed, p.is_listed());
  if (p.is_listed()) return AddListed(seq, p, all);
  const int64_t columns = TileCount(p.Nk);
  std::vector<TileMask> masks(TileCount(p.Nq) * columns);
  for (size_t at = 0; at < masks.size(); ++at) {
    const auto index = static_cast<int64_t>(at);
    masks[at] = TileOf(p, p.by_query, index / columns, index % columns);
  }
  const auto tile = [&](int64_t s, int64_t t) {
    return masks[s / kTile * columns + t / kTile][t % kTile] >> (s % kTile) & 1;
  };
  // Well formed, transposed, clipped.
  ASSERT_NO_FATAL_FAILURE(
      ExpectIs(p, p.Nq, p.Nk, [&](int64_t s, int64_t t) { return tile(s, t) != 0; }));
  const bool has_order = !p.query_rows.empty() || !p.key_rows.empty();
  std::vector<int> slots_of(seq.Nq, 0);
  int64_t pairs = 0;
  for (int64_t s = 0; s < p.Nq; ++s) {
    const int64_t i = p.query_rows.empty() ? s : p.query_rows[s];
    if (i >= 0) {
      ASSERT_LT(i, seq.Nq);
      ASSERT_EQ(++slots_of[i], 1) << "a query in two slots";
    }
    for (int64_t t = 0; t < p.Nk; ++t) {
      if (tile(s, t) == 0) continue;
      const int64_t j = p.key_rows.empty() ? t : p.key_rows[t];
      ASSERT_TRUE(i >= 0 && j >= 0) << "a slot without a row is seen";
      if (has_order) {
        ASSERT_LT(i, nq);
        ASSERT_LT(j, nk);
      }
      if (i >= nq || j >= nk) continue;
      ++pairs;
      const int32_t terms = TermsOf(p.by_query, s / kTile, t / kTile);
      const float bias = terms == Run::kNoTerms || p.terms[terms].bias.empty()
                             ? 0
                             : p.terms[terms].bias[t % kTile * kTile + s % kTile];
      all->weight[i * seq.Nk + j] += std::exp(static_cast<double>(bias));
    }
  }
  // Pairs of masks that are computed are counted by those who compute them.
  if (p.counts_pairs) {
    EXPECT_EQ(CountsOf(p, seq.lengths).pairs, static_cast<double>(pairs));
  }
  EXPECT_EQ(p.listed_again, 0);
  if (source.knows_pairs) {
    EXPECT_EQ(source.visible_pairs, static_cast<double>(pairs));
  }
  // Predictions for patterns of a few tiles have the right order of magnitude.
  EXPECT_GE(source.visible_tiles, 0.3 * CountsOf(p, seq.lengths).tiles - 6);
  EXPECT_LE(source.visible_tiles, 4 * CountsOf(p, seq.lengths).tiles + 40);
  all->pairs += static_cast<double>(pairs);
}

// times(i, j): how often query i sees key j, for rows within the lengths.
template <class Times>
void ExpectParts(const PatternSeq& seq, const PatternParts& parts, const Times& times) {
  SCOPED_TRACE(ToString(seq));
  Expanded all{.weight = std::vector<double>(seq.Nq * seq.Nk)};
  for (const PatternSource& part : parts) ASSERT_NO_FATAL_FAILURE(AddPart(seq, part, &all));
  for (int64_t i = 0; i < seq.Nq; ++i) {
    for (int64_t j = 0; j < seq.Nk; ++j) {
      const bool exists = i < seq.lengths.nq && j < seq.lengths.nk;
      const bool sees = exists && (!seq.causal || j <= i + seq.offset);
      const auto expected = static_cast<double>(sees ? times(i, j) : 0);
      ASSERT_NEAR(all.weight[i * seq.Nk + j], expected, 1e-5) << "pair " << i << "," << j;
    }
  }
}

}  // namespace attnd
