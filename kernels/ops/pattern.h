// A sparsity pattern as data: which tiles of 64 queries x 64 keys are visible, and how.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/core/mutex.h"

namespace attnd {

constexpr int64_t kTile = 64;  // queries and keys of one tile

// Bit q of word k: query q of the tile sees key k of the tile. Queries run along the bits because
// kernels keep queries in vector lanes.
using TileMask = std::array<uint64_t, kTile>;

// `count` consecutive tiles. mask = kFull: every pair is visible; else every tile of the run has
// masks[mask]. Runs keep dense causal attention at a million tokens small (two runs a row).
struct Run {
  static constexpr int32_t kFull = -1;
  static constexpr int32_t kNoTerms = -1;
  int32_t first = 0;
  int32_t count = 0;
  int32_t mask = kFull;
  int32_t terms = kNoTerms;  // of Pattern::terms, the same in every tile of the run
  bool operator==(const Run&) const = default;
};

// What a tile adds to its scores, [key][query] each, empty: nothing. Constants for the gradient.
struct TileTerms {
  static constexpr uint16_t kNoLabel = UINT16_MAX;
  std::vector<float> bias;       // added to s: log multiplicities; natural units
  std::vector<uint16_t> labels;  // columns of AttendTerms::table
  bool operator==(const TileTerms&) const = default;
};

// Row r holds runs[begin[r], begin[r + 1]), ascending and disjoint.
struct TileRows {
  std::vector<int64_t> begin;
  std::vector<Run> runs;
  int64_t rows() const { return begin.empty() ? 0 : static_cast<int64_t>(begin.size()) - 1; }
};

// Immutable once built; pure host data. Tiles are of *slots*: places in an optional gather order of
// query rows and of key rows. Slots beyond Nq or Nk never count as visible.
struct Pattern {
  int64_t Nq = 0, Nk = 0;  // slots
  TileRows by_query;       // row = query tile, runs of key tiles
  TileRows by_key;  // row = key tile, runs of query tiles: the transposed plan of the backward
  std::vector<TileMask> masks;   // de-duplicated; shared by both directions
  std::vector<TileTerms> terms;  // likewise
  // Empty: slot s is row s. Else slot s is query row query_rows[s], or no query (-1). A row stands
  // in at most one slot; one that stands in none sees nothing.
  std::vector<int32_t> query_rows;
  // Empty: slot s is row s of k. Else row key_rows[s] of k, from Nk of k on rows of k2, or no key
  // (-1). A row may stand in several slots: whoever sees two of them counts it twice.
  std::vector<int32_t> key_rows;
  std::vector<float> key_bias;  // of a key slot, added to s; natural units. Empty: 0
  int64_t visible_pairs = 0;
  int64_t visible_tiles = 0;
};

// Collects the visible tiles of a pattern row by row, then builds both directions.
// Cost: O(visible runs + tiles that carry a mask), never O(Nq * Nk).
class PatternBuilder {
 public:
  PatternBuilder(int64_t Nq, int64_t Nk);

  // REQUIRES: 0 <= q_tile < ceil(Nq/64), key tiles in range, each tile added at most once. Tiles
  // may come in any order. A mask is clipped to Nq and Nk; one that shows every pair that is left
  // becomes kFull, one that shows none vanishes.
  void AddFull(int64_t q_tile, int64_t first_key_tile, int64_t count);
  void AddMasked(int64_t q_tile, int64_t key_tile, const TileMask& mask);

  // Every pair with lo <= j - i <= hi. kUnbounded (either side) means no limit.
  static constexpr int64_t kUnbounded = INT64_MAX;
  void AddBand(int64_t lo, int64_t hi);

  // Every pair with lo(i) <= j <= hi(i), both non-decreasing in i: for windows that move in blocks.
  void AddIntervals(const std::function<int64_t(int64_t)>& lo,
                    const std::function<int64_t(int64_t)>& hi);

  Pattern Build() &&;

 private:
  struct Entry {
    int64_t q_tile;
    Run run;
  };
  struct Interval {
    int64_t lo, hi;
  };
  // The tiles of one row whose first and last query see these keys; what lies between them does not
  // decrease. add_masked(key_tile) adds a tile that is not visible as a whole.
  template <class AddTile>
  void AddRow(int64_t q_tile, const Interval& first, const Interval& last,
              const AddTile& add_masked);
  // The place of a clipped mask in masks_, Run::kFull, or kHidden.
  int32_t Intern(int64_t q_tile, int64_t key_tile, const TileMask& mask);
  void Add(int64_t q_tile, int64_t first_key_tile, int64_t count, int32_t mask);
  int64_t QueriesOf(int64_t q_tile) const;
  int64_t KeysOf(int64_t key_tile) const;

  int64_t Nq_, Nk_;
  std::vector<Entry> entries_;
  std::vector<TileMask> masks_;
  std::unordered_multimap<uint64_t, int32_t> mask_index_;  // hash of a mask -> its place
};

// Queries [0, nq) and keys [0, nk) of a row that is shorter than its tensors.
struct Lengths {
  int64_t nq = 0, nk = 0;
};

// A pattern before it is built: enough to plan (counts in closed form) and to find it in the cache.
// The counts are those of one row's lengths; the pattern covers all of Nq x Nk, so that rows of
// different lengths share it.
struct PatternSource {
  std::string key;           // equal keys mean equal patterns; holds Nq, Nk and every parameter
  double visible_pairs = 0;  // exact
  double visible_tiles = 0;  // about: exact or a little more, for predictions
  std::function<Pattern()> build;  // empty: every pair is visible, no pattern is needed
};

// {lo <= j - i <= hi} over Nq queries and Nk keys; kUnbounded as in AddBand.
PatternSource BandSource(int64_t Nq, int64_t Nk, int64_t lo, int64_t hi);
PatternSource BandSource(int64_t Nq, int64_t Nk, int64_t lo, int64_t hi, const Lengths& lengths);

// Visible pairs of a band, exact, in constant time.
double BandPairs(const Lengths& lengths, int64_t lo, int64_t hi);

// Windows that move in blocks. With p = i + offset, floor division and W = block, query i sees
// floor(p/W) - look_backward <= floor(j/W) <= floor(p/W) + look_forward; if causal, also j <= p.
struct BlockBand {
  int64_t block = 1;                            // >= 1
  int64_t look_backward = 0, look_forward = 0;  // >= 0
  int64_t offset = 0;
  bool causal = false;
};
PatternSource BlockBandSource(int64_t Nq, int64_t Nk, const BlockBand& band,
                              const Lengths& lengths);

// Patterns by key, least recently used out first, bounded in bytes. Thread safe; building happens
// outside the lock.
class PatternCache {
 public:
  explicit PatternCache(int64_t max_bytes = int64_t{64} << 20);
  ~PatternCache();
  std::shared_ptr<const Pattern> Get(const PatternSource& source);

 private:
  struct Impl;
  const int64_t max_bytes_;
  Mutex mu_;
  std::unique_ptr<Impl> impl_;  // guarded by mu_
};

}  // namespace attnd
