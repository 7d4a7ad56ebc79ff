// Predicates over pairs of slots: what a pattern shows, said in a few values that combine by And,
// Or and Not. A predicate is asked about tiles, never about all pairs, so that a pattern costs its
// visible runs and its edge tiles.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/pattern/key.h"
#include "kernels/pattern/pattern.h"

namespace attnd {

// Key tiles [first, last) that a query tile sees: all pairs of them, or (edge) maybe some.
struct TileSpan {
  int64_t first = 0, last = 0;
  bool full = false;
};

// Numbers that decide the mask of a tile: of one predicate, tiles with equal numbers have equal
// masks. size 0: unknown.
struct TileShape {
  static constexpr int kMax = 6;
  int size = 0;
  std::array<int64_t, kMax> numbers = {};
  bool operator==(const TileShape&) const = default;
};

// Immutable, thread safe. Knows no Nq and Nk: what it says of slots beyond is clipped.
class Predicate : public ComputedMasks {
 public:
  // Appends what query tile `q_tile` sees of the key tiles [first, last): ascending and disjoint.
  virtual void Spans(int64_t q_tile, int64_t first, int64_t last,
                     std::vector<TileSpan>* spans) const = 0;
  // Clears the pairs that are not visible. Exact for every tile, whatever Spans says.
  void Keep(int64_t q_tile, int64_t key_tile, TileMask* mask) const override = 0;
  virtual TileShape Shape(int64_t q_tile, int64_t key_tile) const;
  int64_t bytes() const override { return 128; }

  // Equal keys mean equal predicates: KeyOf all that Keep reads. Made when asked for: most
  // predicates live inside a source that has a shorter key.
  virtual std::string key() const = 0;
};

Visible And(Visible a, Visible b);
Visible Or(Visible a, Visible b);
Visible Not(Visible a);
inline Visible AndNot(Visible a, Visible b) { return And(std::move(a), Not(std::move(b))); }

// --- by distance: constant memory ----------------------------------------------------------------
// lo <= k - q <= hi; PatternBuilder::kUnbounded as in AddBand.
Visible Band(int64_t lo, int64_t hi);

// As WindowSource.
Visible Windows(const Window& window);

// Query block u = floor((q + offset) / bq) sees the keys of the blocks [u + lo, u + hi), each bk
// long: blocks of one sequence beside those of another. lo = -kAll: from the first one on.
struct BlockSteps {
  static constexpr int64_t kAll = int64_t{1} << 33;
  int64_t bq = 1, bk = 1;
  int64_t lo = 0, hi = 1;
  int64_t offset = 0;
};
Visible BlockDiagonal(const BlockSteps& steps);

// (q + offset - k) mod stride = 0, stride >= 1: every stride-th key. And(Band, Comb) is a dilated
// window.
Visible Comb(int64_t stride, int64_t offset);

// --- packed sequences ----------------------------------------------------------------------------
// As PackedSource.
Visible PackedWindows(std::span<const int32_t> cu_q, std::span<const int32_t> cu_k,
                      const Window& window);

// --- by coordinates of slots: memory O(Nq + Nk) --------------------------------------------------
// lo[q] <= x[k] <= hi[q]: segments, buckets, lengths, positions, grid rows and columns. A query
// with lo > hi sees nothing.
struct Coordinates {
  std::vector<int32_t> lo, hi;  // of query slots
  std::vector<int32_t> x;       // of key slots
};
Visible Within(Coordinates coordinates);

// ids equal and >= 0.
Visible SameSegment(std::span<const int32_t> ids_q, std::span<const int32_t> ids_k);
// k_position <= q_position + offset: causality after a permutation.
Visible NotAfter(std::span<const int32_t> q_positions, std::span<const int32_t> k_positions,
                 int64_t offset);

// --- sets and lists ------------------------------------------------------------------------------
// Keys (queries) whose slot is in the set, given in any order, repeats and negative ones ignored.
Visible Keys(std::span<const int32_t> slots);
Visible Queries(std::span<const int32_t> slots);

// Blocks of bq x bk slots: row t of blocks, the queries [offset_q + t bq, ..), sees the key blocks
// of its runs, ascending and disjoint; block c holds the keys [offset_k + c bk, ..).
struct BlockRun {
  int32_t first = 0, count = 0;
  int32_t times = 1;  // how often each block is listed: see Multiplicities
};
struct BlockRows {
  int64_t bq = kTile, bk = kTile;  // >= 1
  int64_t offset_q = 0, offset_k = 0;
  std::vector<int64_t> begin;  // row t: runs [begin[t], begin[t + 1]); {0} has no row yet
  std::vector<BlockRun> runs;

  int64_t bytes() const {
    return static_cast<int64_t>(begin.capacity() * sizeof(int64_t) +
                                runs.capacity() * sizeof(BlockRun));
  }
  // To the row at the end. REQUIRES: `run` begins where the last one ended, or later.
  void Append(const BlockRun& run);
  void EndRow() { begin.push_back(static_cast<int64_t>(runs.size())); }
};
using BlockRowsPtr = std::shared_ptr<const BlockRows>;
Visible Blocks(BlockRowsPtr rows);
inline Visible Blocks(BlockRows rows) {
  return Blocks(std::make_shared<const BlockRows>(std::move(rows)));
}
// layout[t nbk + c] != 0: row t of blocks sees block c.
BlockRows BlocksOfLayout(std::span<const int32_t> layout, int64_t nbk, int64_t bq, int64_t bk);
// Row t's list of blocks is indices[indptr[t], indptr[t + 1]), any order; `times` counts repeats.
BlockRows BlocksOfLists(std::span<const int32_t> indptr, std::span<const int32_t> indices,
                        int64_t bq, int64_t bk);

// --- places --------------------------------------------------------------------------------------
// Key tiles below `tiles` as in `left`; tile tiles + c as tile c of `right`: keys appended after
// others, on a tile border.
Visible Beside(Visible left, int64_t tiles, Visible right);
// Query tiles below `tiles` as in `upper`; tile tiles + t as tile t of `lower`, which is meant for
// few tiles: shapes of masks are not known there.
Visible Over(Visible upper, int64_t tiles, Visible lower);

}  // namespace attnd
