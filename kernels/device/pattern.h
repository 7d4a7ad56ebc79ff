// A sparsity pattern as a device receives it: which tiles of 64 queries x 64 keys are visible, and
// how.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace attnd {

// Queries and keys of one tile. Tiles of 64 x 64 and the layout of TileMask are fixed for every
// device: patterns are built, cached and shared in this form, and a device with other tiles or
// another order of bits converts them in its own copy (DeviceCopies).
constexpr int64_t kTile = 64;

// Bit q of word k: query q of the tile sees key k of the tile. Queries run along the bits because
// kernels keep queries in vector lanes.
using TileMask = std::array<uint64_t, kTile>;

// The lowest `n` bits, n in [0, 64].
inline uint64_t LowBits(int64_t n) { return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }

// `count` consecutive tiles. mask = kFull: every pair is visible; kComputed: ComputeMask gives the
// mask of each tile; else every tile of the run has masks[mask]. Runs keep dense causal attention
// at a million tokens small (two runs a row).
struct Run {
  static constexpr int32_t kFull = -1;
  static constexpr int32_t kNoTerms = -1;
  static constexpr int32_t kComputed = -2;  // also of terms: ComputeTerms gives them
  int32_t first = 0;
  int32_t count = 0;
  int32_t mask = kFull;
  int32_t terms = kNoTerms;  // of Pattern::terms, the same in every tile of the run
  bool is_computed() const { return mask == kComputed || terms == kComputed; }
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

// Pairs one by one: row r holds columns[begin[r], begin[r + 1]), ascending. A column that stands
// there twice counts twice.
struct PairList {
  std::vector<int64_t> begin;
  std::vector<int32_t> columns;
  bool operator==(const PairList&) const = default;
};

// Row i sees those of the keys i - before to i + after that exist.
struct KeyBand {
  int64_t before = 0, after = 0;  // of any sign, beyond +- 2^32: no limit
  bool operator==(const KeyBand&) const = default;
};

// Key tiles [first, last) of a query tile. full: all pairs are visible; else (an edge) maybe some.
struct TileSpan {
  int64_t first = 0, last = 0;
  bool full = false;
};

// Masks of tiles that a pattern does not store. Immutable, thread safe.
class ComputedMasks {
 public:
  virtual ~ComputedMasks() = default;
  // Appends the spans of key tiles in [first, last) that `q_tile` sees, ascending and disjoint.
  virtual void Spans(int64_t q_tile, int64_t first, int64_t last,
                     std::vector<TileSpan>* spans) const = 0;
  // Clears the pairs of a tile that are not visible.
  virtual void Keep(int64_t q_tile, int64_t key_tile, TileMask* mask) const = 0;
  // Approximate memory that it keeps, shared data included.
  virtual int64_t bytes() const = 0;
};

// Terms of tiles that a pattern does not store. Immutable, thread safe.
class ComputedTerms {
 public:
  virtual ~ComputedTerms() = default;
  // Fills the terms of a visible tile, [key][query]; leaves them empty where nothing is added.
  virtual void Fill(int64_t q_tile, int64_t key_tile, TileTerms* terms) const = 0;
  virtual int64_t bytes() const = 0;  // as ComputedMasks::bytes
};

class DeviceCopies;  // device_copies.h

// Owns the DeviceCopies of one pattern. A copy of a pattern has copies of its own, none at first.
class DeviceCopiesOfOne {
 public:
  DeviceCopiesOfOne();
  DeviceCopiesOfOne(const DeviceCopiesOfOne&) : DeviceCopiesOfOne() {}
  DeviceCopiesOfOne& operator=(const DeviceCopiesOfOne&) { return *this; }

  DeviceCopies* operator->() const { return copies_.get(); }

 private:
  const std::shared_ptr<DeviceCopies> copies_;
};

// Immutable once built; host data. Tiles are of *slots*: places in an optional gather order of
// query rows and of key rows. Slots beyond Nq or Nk never count as visible.
struct Pattern {
  int64_t Nq = 0, Nk = 0;  // slots
  TileRows by_query;       // row = query tile, runs of key tiles
  TileRows by_key;         // row = key tile, runs of query tiles: the transpose, for the backward
  std::vector<TileMask> masks;   // de-duplicated; shared by both directions
  std::vector<TileTerms> terms;  // likewise
  // Of computed runs, null if there are none: what `masks` and `terms` would hold. Their memory is
  // that of the data that they follow from, O(Nq + Nk) or what the caller sent.
  std::shared_ptr<const ComputedMasks> computed_masks;
  std::shared_ptr<const ComputedTerms> computed_terms;
  // Empty: slot s is row s. Else slot s is query row query_rows[s], or no query (-1). A row stands
  // in at most one slot; one that stands in none sees nothing.
  std::vector<int32_t> query_rows;
  // Empty: slot s is row s of k. Else row key_rows[s] of k, from Nk of k on rows of k2, or no key
  // (-1). A row may stand in several slots: a query that sees two of them counts it twice.
  std::vector<int32_t> key_rows;
  std::vector<float> key_bias;  // of a key slot, added to s; natural units. Empty: 0
  // Of a listed pattern, whose tiles would be nearly empty: it is these pairs of rows in natural
  // order, and has neither tiles nor anything else of the above.
  PairList keys_of, queries_of;  // of every query; of every key, the same pairs
  int64_t visible_pairs = 0;     // of slots, apart from tiles whose mask is computed
  int64_t listed_again = 0;      // of these, repeats of pairs that a list holds more than once
  int64_t visible_tiles = 0;     // computed ones included, whether they show a pair or not
  bool counts_pairs = true;      // no mask is computed
  // Given where the pattern is known to be this, in natural order and with nothing added: a library
  // may compute it from two numbers.
  std::optional<KeyBand> band;
  DeviceCopiesOfOne copies;  // what devices keep of it in memory of their own

  bool is_listed() const { return !keys_of.begin.empty(); }
};

// Costs of a device that decide which form a pattern has, never which pairs it shows. The defaults
// are those of the CPU (tests/bench/density.py).
struct PatternTuning {
  // A listed pair costs as much as this many pairs of a tile: keys are listed pair by pair where
  // every query lists fewer than Nk / pairs_a_listed keys, else they are tiles.
  int64_t pairs_a_listed = 8;
  // If more keys than this merely share a tile with a global key, the global keys are gathered.
  int64_t most_idle_keys = kTile / 2;
  // Blocks of fewer rows are gathered: in natural order, a tile of queries would meet many of them.
  int64_t least_natural_block = kTile / 2;
  // Global keys that a plan assumes where their number is unknown.
  int64_t planned_globals = kTile;
};

// What a mask shows of the pairs of slots below Nq and Nk.
enum class TileSight : uint8_t { kNothing, kSome, kEverything };
// The mask of a tile of a run whose mask is computed, clipped to Nq and Nk. Costs about a
// microsecond.
TileSight ComputeMask(const Pattern& pattern, int64_t q_tile, int64_t key_tile, TileMask* mask);
// The terms of a tile of a run whose terms are computed. `terms` is reused.
void ComputeTerms(const Pattern& pattern, int64_t q_tile, int64_t key_tile, TileTerms* terms);

}  // namespace attnd
