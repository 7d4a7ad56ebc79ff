// Predicates by distance: windows, packed windows, combs.
#include "kernels/pattern/predicates/windows.h"

#include <algorithm>
#include <cassert>
#include <numeric>

#include "kernels/pattern/builder.h"
#include "kernels/pattern/tiles.h"

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
    // Someone sees [low.lo, high.hi), everyone sees [high.lo, low.hi): full tiles lie inside.
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

// `start`: of the block that holds p.
Interval KeysFrom(const Window& w, int64_t start, int64_t p) {
  const int64_t end = start + w.block + w.after;
  return {start - w.before, w.causal ? std::min(end, p + 1) : end};
}

Interval KeysOf(const Window& w, int64_t p) {
  return KeysFrom(w, w.block == 1 ? p : FloorDiv(p, w.block) * w.block, p);
}

// Those of `count` positions from p on.
void KeysOf(const Window& w, int64_t p, int64_t count, Interval* keys) {
  int64_t start = FloorDiv(p, w.block) * w.block;
  for (int64_t n = 0; n < count; ++n) {
    if (p + n == start + w.block) start += w.block;
    keys[n] = KeysFrom(w, start, p + n);
  }
}

class WindowsOf : public Intervals {
 public:
  explicit WindowsOf(const Window& window) : window_(window) {}
  std::string key() const override { return KeyOf("window", window_); }

  Interval Of(int64_t query) const override { return KeysOf(window_, query + window_.offset); }

  TileIntervals OfTile(int64_t q_tile) const override {
    TileIntervals of;
    KeysOf(window_, q_tile * kTile + window_.offset, kTile, of.data());
    return of;
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

// As in PackedWindows.
struct Packed {
  std::vector<int64_t> cu_q, cu_k;
  Window window;
};

class PackedOf : public Intervals {
 public:
  explicit PackedOf(Packed packed)
      : packed_(std::move(packed)),
        cu_q_(packed_.cu_q),
        cu_k_(packed_.cu_k),
        window_(packed_.window) {
    assert(!cu_q_.empty() && cu_q_.size() == cu_k_.size());
  }
  std::string key() const override { return KeyOf("packed", packed_); }

  Interval Of(int64_t query) const override {
    Interval keys;
    Fill(query, 1, &keys);
    return keys;
  }
  TileIntervals OfTile(int64_t q_tile) const override {
    TileIntervals of;
    Fill(q_tile * kTile, kTile, of.data());
    return of;
  }

  TileShape Shape(int64_t q_tile, int64_t key_tile) const override {
    const int64_t i = q_tile * kTile, j = key_tile * kTile;
    const size_t s = SegmentOf(i);
    if (s + 1 == cu_q_.size() || i + kTile > cu_q_[s + 1] || j < cu_k_[s] ||
        j + kTile > cu_k_[s + 1]) {
      return {};
    }
    // All of the tile lies inside one segment.
    const int64_t p = i + OffsetOf(s);
    return {2, {j - cu_k_[s] - p, Remainder(p, window_.block)}};
  }
  int64_t bytes() const override {
    return static_cast<int64_t>((cu_q_.size() + cu_k_.size()) * sizeof(int32_t));
  }

 private:
  void Fill(int64_t query, int64_t count, Interval* keys) const {
    for (size_t s = SegmentOf(query); count > 0; ++s) {
      const bool is_last = s + 1 == cu_q_.size();
      const int64_t begin = cu_k_[s], end = is_last ? begin : cu_k_[s + 1];
      const int64_t here = is_last ? count : std::min(count, cu_q_[s + 1] - query);
      if (!is_last) KeysOf(window_, query + OffsetOf(s), here, keys);
      for (int64_t n = 0; n < here; ++n) {
        keys[n] = is_last ? Interval{begin, begin}
                          : Interval{std::clamp(begin + keys[n].lo, begin, end),
                                     std::clamp(begin + keys[n].hi, begin, end)};
      }
      query += here;
      keys += here;
      count -= here;
    }
  }
  // The segment that holds a query, or as many as there are.
  size_t SegmentOf(int64_t query) const {
    return std::upper_bound(cu_q_.begin() + 1, cu_q_.end(), query) - cu_q_.begin() - 1;
  }
  // From a query to its position in the segment.
  int64_t OffsetOf(size_t s) const {
    const int64_t queries = cu_q_[s + 1] - cu_q_[s], keys = cu_k_[s + 1] - cu_k_[s];
    return window_.offset + keys - queries - cu_q_[s];
  }

  const Packed packed_;
  const std::vector<int64_t>&cu_q_, &cu_k_;
  const Window& window_;
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
  constexpr int64_t kUnbounded = PatternBuilder::kUnbounded;
  const int64_t before = lo == kUnbounded ? kFar : -std::clamp(lo, -kFar, kFar);
  const int64_t after = hi == kUnbounded ? kFar : std::clamp(hi, -kFar, kFar);
  return Windows({.before = before, .after = after});
}

Visible BlockDiagonal(const BlockSteps& steps) {
  assert(steps.bq >= 1 && steps.bk >= 1);
  return std::make_shared<BlockDiagonalOf>(steps);
}

Visible PackedWindows(std::span<const int32_t> cu_q, std::span<const int32_t> cu_k,
                      const Window& window) {
  return std::make_shared<PackedOf>(
      Packed{{cu_q.begin(), cu_q.end()}, {cu_k.begin(), cu_k.end()}, window});
}

}  // namespace attnd
