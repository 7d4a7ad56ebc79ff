// Compares patterns with boolean matrices of every pair.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <vector>

#include "kernels/device/pattern.h"
#include "tests/pattern/pattern_masks.h"

namespace attnd {

// Whether query slot i sees key slot j: the definition that a pattern is compared with.
using Sees = std::function<bool(int64_t i, int64_t j)>;

inline int64_t TileCount(int64_t n) { return (n + kTile - 1) / kTile; }

// The mask of tile (q_tile, key_tile): all ones in a full run, all zeros outside of runs.
inline TileMask TileOf(const Pattern& pattern, const TileRows& rows, int64_t row, int64_t column) {
  TileMask mask{};
  for (int64_t r = rows.begin[row]; r < rows.begin[row + 1]; ++r) {
    const Run& run = rows.runs[r];
    if (column < run.first || column >= run.first + run.count) continue;
    const bool by_query = &rows == &pattern.by_query;
    mask = MaskOfRun(pattern, run, by_query ? row : column, by_query ? column : row);
  }
  return mask;
}

// The terms of a visible tile, Run::kNoTerms of a hidden one.
inline int32_t TermsOf(const TileRows& rows, int64_t row, int64_t column) {
  for (int64_t r = rows.begin[row]; r < rows.begin[row + 1]; ++r) {
    const Run& run = rows.runs[r];
    if (column >= run.first && column < run.first + run.count) return run.terms;
  }
  return Run::kNoTerms;
}

inline void ExpectWellFormed(const TileRows& rows, int64_t columns, int64_t masks) {
  for (int64_t row = 0; row < rows.rows(); ++row) {
    int64_t last = 0;
    for (int64_t r = rows.begin[row]; r < rows.begin[row + 1]; ++r) {
      const Run& run = rows.runs[r];
      ASSERT_GE(run.first, last);  // ascending and disjoint
      ASSERT_GT(run.count, 0);
      last = run.first + run.count;
      ASSERT_LE(last, columns);
      ASSERT_GE(run.mask, Run::kComputed);
      ASSERT_LT(run.mask, masks);
    }
  }
}

// A mask, unless all ones (a full run), has no bit beyond the sequence and hides some pair.
inline void ExpectClipped(const TileMask& mask, int64_t queries, int64_t keys) {
  TileMask all;
  all.fill(~uint64_t{0});
  if (mask == all) return;
  const uint64_t seen = queries == kTile ? ~uint64_t{0} : (uint64_t{1} << queries) - 1;
  bool is_less = false;
  for (int64_t k = 0; k < kTile; ++k) {
    ASSERT_EQ(mask[k] & ~(k < keys ? seen : 0), 0u) << "a bit beyond the sequence, key " << k;
    is_less = is_less || (k < keys && mask[k] != seen);
  }
  ASSERT_TRUE(is_less) << "a full tile as a mask";
}

inline void ExpectIs(const Pattern& pattern, int64_t Nq, int64_t Nk, const Sees& sees_pair) {
  ASSERT_EQ(pattern.Nq, Nq);
  ASSERT_EQ(pattern.Nk, Nk);
  ASSERT_EQ(pattern.by_query.rows(), TileCount(Nq));
  ASSERT_EQ(pattern.by_key.rows(), TileCount(Nk));
  const auto masks = static_cast<int64_t>(pattern.masks.size());
  ASSERT_NO_FATAL_FAILURE(ExpectWellFormed(pattern.by_query, TileCount(Nk), masks));
  ASSERT_NO_FATAL_FAILURE(ExpectWellFormed(pattern.by_key, TileCount(Nq), masks));
  const bool is_stored = pattern.computed_masks == nullptr;
  int64_t pairs = 0, tiles = 0;
  for (int64_t r = 0; r < TileCount(Nq); ++r) {
    for (int64_t c = 0; c < TileCount(Nk); ++c) {
      const TileMask mask = TileOf(pattern, pattern.by_query, r, c);
      ASSERT_EQ(mask, TileOf(pattern, pattern.by_key, c, r)) << "transposed tile " << r << "," << c;
      ASSERT_EQ(TermsOf(pattern.by_query, r, c), TermsOf(pattern.by_key, c, r));
      bool any = false;
      for (int64_t i = r * kTile; i < std::min(Nq, (r + 1) * kTile); ++i) {
        for (int64_t j = c * kTile; j < std::min(Nk, (c + 1) * kTile); ++j) {
          const bool sees = (mask[j % kTile] >> (i % kTile) & 1) != 0;
          ASSERT_EQ(sees, sees_pair(i, j)) << "pair " << i << "," << j;
          any = any || sees;
          pairs += sees;
        }
      }
      tiles += any;
      const int64_t queries = std::min(kTile, Nq - r * kTile),
                    keys = std::min(kTile, Nk - c * kTile);
      ASSERT_NO_FATAL_FAILURE(ExpectClipped(mask, queries, keys));
      ASSERT_TRUE(any || !is_stored || mask == TileMask{})
          << "a run over nothing at " << r << "," << c;
    }
  }
  if (pattern.counts_pairs) {
    EXPECT_EQ(pattern.visible_pairs, pairs);
  }
  if (is_stored) {
    EXPECT_EQ(pattern.visible_tiles, tiles);
  }
  EXPECT_GE(pattern.visible_tiles, tiles);
  // No two masks are equal.
  EXPECT_EQ(std::set<TileMask>(pattern.masks.begin(), pattern.masks.end()).size(),
            pattern.masks.size());
}

// Sizes around the borders of tiles, and a prime.
inline const std::vector<int64_t>& Sizes() {
  static const auto& sizes = *new std::vector<int64_t>{0, 1, 63, 64, 65, 127, 128, 193, 257};
  return sizes;
}

}  // namespace attnd
