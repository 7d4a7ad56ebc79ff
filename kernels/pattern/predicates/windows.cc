// Predicates by distance: windows and steps of blocks.
#include "kernels/pattern/predicates/windows.h"

#include <algorithm>
#include <cassert>
#include <numeric>

#include "kernels/pattern/base/tiles.h"

namespace attnd {
namespace {

// Keys [lo, hi).
struct Interval {
  int64_t lo, hi;
};

// The keys of the queries of a tile.
using TileIntervals = std::array<Interval, kTile>;

// Every query sees an interval of keys, and neither bound decreases from query to query.
class Intervals : public Predicate {
 public:
  virtual Interval Of(int64_t query) const = 0;
  virtual TileIntervals OfTile(int64_t q_tile) const = 0;

  void Spans(int64_t q_tile, int64_t first, int64_t last,
             std::vector<TileSpan>* spans) const override {
    const Interval low = Of(q_tile * kTile), high = Of(q_tile * kTile + kTile - 1);
    // Some query sees [low.lo, high.hi), all queries see [high.lo, low.hi), which holds the full
    // tiles.
    const int64_t begin = std::clamp(FloorDiv(low.lo, kTile), first, last);
    const int64_t end = std::clamp(FloorDiv(high.hi + kTile - 1, kTile), begin, last);
    const int64_t full_begin = std::clamp(FloorDiv(high.lo + kTile - 1, kTile), begin, end);
    const int64_t full_end = std::clamp(FloorDiv(low.hi, kTile), full_begin, end);
    Emit(begin, full_begin, /*full=*/false, spans);
    Emit(full_begin, full_end, /*full=*/true, spans);
    Emit(full_end, end, /*full=*/false, spans);
  }

  void Keep(int64_t q_tile, int64_t key_tile, TileMask* mask) const override {
    const int64_t first = key_tile * kTile;
    if (Of(q_tile * kTile + kTile - 1).lo <= first && Of(q_tile * kTile).hi >= first + kTile)
      return;
    // Key j is seen by the queries [ended, started).
    const TileIntervals of = OfTile(q_tile);
    int64_t started = 0, ended = 0;
    for (int64_t k = 0; k < kTile; ++k) {
      const int64_t j = first + k;
      while (started < kTile && of[started].lo <= j) ++started;
      while (ended < kTile && of[ended].hi <= j) ++ended;
      (*mask)[k] &= ended < started ? LowBits(started) & ~LowBits(ended) : 0;
    }
  }
};

// `start`: the first position of the block that holds p.
Interval KeysFrom(const Window& w, int64_t start, int64_t p) {
  const int64_t end = start + w.block + w.after;
  return {start - w.before, w.causal ? std::min(end, p + 1) : end};
}

Interval KeysOf(const Window& w, int64_t p) {
  return KeysFrom(w, w.block == 1 ? p : FloorDiv(p, w.block) * w.block, p);
}

// The keys of kTile positions from p on.
TileIntervals KeysOfTile(const Window& w, int64_t p) {
  TileIntervals keys;
  int64_t start = FloorDiv(p, w.block) * w.block;
  for (int64_t n = 0; n < kTile; ++n) {
    if (p + n == start + w.block) start += w.block;
    keys[n] = KeysFrom(w, start, p + n);
  }
  return keys;
}

class WindowsOf : public Intervals {
 public:
  explicit WindowsOf(const Window& window) : window_(window) {}
  std::string key() const override { return KeyOf("window", window_); }

  Interval Of(int64_t query) const override { return KeysOf(window_, query + window_.offset); }

  TileIntervals OfTile(int64_t q_tile) const override {
    return KeysOfTile(window_, q_tile * kTile + window_.offset);
  }

  TileShape Shape(int64_t q_tile, int64_t key_tile) const override {
    return {2, {key_tile - q_tile, Remainder(q_tile * kTile + window_.offset, window_.block)}};
  }

 private:
  const Window window_;
};

class BlockDiagonalOf : public Intervals {
 public:
  explicit BlockDiagonalOf(const BlockSteps& steps) : s_(steps) {}
  std::string key() const override { return KeyOf("diagonal", s_); }

  Interval Of(int64_t query) const override {
    const int64_t u = FloorDiv(query + s_.offset, s_.bq);
    return {s_.lo == -BlockSteps::kAll ? 0 : (u + s_.lo) * s_.bk, (u + s_.hi) * s_.bk};
  }
  TileIntervals OfTile(int64_t q_tile) const override {
    TileIntervals of;
    for (int64_t q = 0; q < kTile; ++q) of[q] = Of(q_tile * kTile + q);
    return of;
  }
  TileShape Shape(int64_t q_tile, int64_t key_tile) const override {
    const int64_t q = q_tile * kTile + s_.offset;
    return {2, {key_tile * kTile - FloorDiv(q, s_.bq) * s_.bk, Remainder(q, s_.bq)}};
  }

 private:
  const BlockSteps s_;
};

}  // namespace

Visible Windows(const Window& window) {
  Window w = window;
  assert(w.block >= 1 && (w.block == 1 || (w.before >= 0 && w.after >= 0)));
  // Larger values show the same pairs, and sums of smaller ones cannot overflow.
  w.block = std::min(w.block, kFar);
  w.before = std::clamp(w.before, -kFar, kFar);
  w.after = std::clamp(w.after, -kFar, kFar);
  if (w.causal) w.after = std::min<int64_t>(w.after, 0);
  return std::make_shared<WindowsOf>(w);
}

Visible Band(int64_t lo, int64_t hi) {
  const int64_t before = lo == kUnbounded ? kFar : -std::clamp(lo, -kFar, kFar);
  const int64_t after = hi == kUnbounded ? kFar : std::clamp(hi, -kFar, kFar);
  return Windows({.before = before, .after = after});
}

Visible BlockDiagonal(const BlockSteps& steps) {
  assert(steps.bq >= 1 && steps.bk >= 1);
  return std::make_shared<BlockDiagonalOf>(steps);
}

}  // namespace attnd
