// A sparsity pattern as data: which tiles of 64 queries x 64 keys are visible, and how.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
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
  int32_t first = 0;
  int32_t count = 0;
  int32_t mask = kFull;
  bool operator==(const Run&) const = default;
};

// Row r holds runs[begin[r], begin[r + 1]), ascending and disjoint.
struct TileRows {
  std::vector<int64_t> begin;
  std::vector<Run> runs;
  int64_t rows() const { return begin.empty() ? 0 : static_cast<int64_t>(begin.size()) - 1; }
};

// Immutable once built; pure host data. Pairs beyond Nq or Nk never count as visible.
struct Pattern {
  int64_t Nq = 0, Nk = 0;
  TileRows by_query;  // row = query tile, runs of key tiles
  TileRows by_key;    // row = key tile, runs of query tiles: the transposed plan of the backward
  std::vector<TileMask> masks;  // de-duplicated; shared by both directions
  int64_t visible_pairs = 0;
  int64_t visible_tiles = 0;
};

// Collects the visible tiles of a pattern row by row, then builds both directions.
// Cost: O(visible runs + tiles that carry a mask), never O(Nq * Nk).
class PatternBuilder {
 public:
  PatternBuilder(int64_t Nq, int64_t Nk);

  // REQUIRES: 0 <= q_tile < ceil(Nq/64), key tiles in range, each tile added at most once. Tiles
  // may come in any order. A mask is clipped to Nq and Nk; an all-ones mask becomes kFull, an
  // all-zeros mask vanishes.
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
  int64_t Nq_, Nk_;
  std::map<int64_t, std::vector<Run>> rows_;
  std::vector<TileMask> masks_;
  std::unordered_multimap<uint64_t, int32_t> mask_index_;  // hash of a mask -> its place
};

// A pattern before it is built: enough to plan (counts in closed form) and to find it in the cache.
struct PatternSource {
  std::string key;           // equal keys mean equal patterns; holds Nq, Nk and every parameter
  double visible_pairs = 0;  // exact
  double visible_tiles = 0;  // exact or a little more
  std::function<Pattern()> build;
};

// {lo <= j - i <= hi} over Nq queries and Nk keys; kUnbounded as in AddBand.
PatternSource BandSource(int64_t Nq, int64_t Nk, int64_t lo, int64_t hi);

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
