// Predicates by coordinates of slots: a query sees the keys whose coordinate lies in its interval.
#include <cassert>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/ops/pattern_predicate.h"
#include "kernels/ops/pattern_tiles.h"

namespace attnd {
namespace {

constexpr int32_t kLowest = std::numeric_limits<int32_t>::min();
constexpr int32_t kHighest = std::numeric_limits<int32_t>::max();

// Smallest and largest of some numbers.
struct Bounds {
  int32_t min = kHighest, max = kLowest;
  bool is_sorted = true;  // of a tile: none is below the one before
  void Add(const Bounds& other) {
    min = std::min(min, other.min);
    max = std::max(max, other.max);
  }
};

// Level 0: bounds of every tile; level l + 1: of kFan nodes of level l. A query tile passes over a
// node at once if it sees all of it or nothing, so sorted coordinates cost a logarithm.
constexpr int64_t kFan = 16;
using Level = std::vector<Bounds>;

Level BoundsOf(const std::vector<int32_t>& values) {
  const auto n = static_cast<int64_t>(values.size());
  Level bounds(Tiles(n));
  for (int64_t i = 0; i < n; i += kTile) {
    Bounds tile;
    for (int64_t end = std::min(i + kTile, n), j = i; j < end; ++j) {
      tile.is_sorted = tile.is_sorted && (j == i || values[j - 1] <= values[j]);
      tile.Add({values[j], values[j]});
    }
    bounds[i / kTile] = tile;
  }
  return bounds;
}

std::vector<Level> TreeOf(const std::vector<int32_t>& values) {
  std::vector<Level> levels = {BoundsOf(values)};
  while (levels.back().size() > 1) {
    const Level& below = levels.back();
    Level level((below.size() + kFan - 1) / kFan);
    for (size_t i = 0; i < below.size(); ++i) level[i / kFan].Add(below[i]);
    levels.push_back(std::move(level));
  }
  return levels;
}

class WithinOf : public Predicate {
 public:
  explicit WithinOf(Coordinates c)
      : c_(std::move(c)), lo_(BoundsOf(c_.lo)), hi_(BoundsOf(c_.hi)), keys_(TreeOf(c_.x)) {
    assert(c_.lo.size() == c_.hi.size());
  }
  std::string key() const override {
    return absl::StrCat("within ", Fingerprint(c_.lo), " ", Fingerprint(c_.hi), " ",
                        Fingerprint(c_.x));
  }

  void Spans(int64_t q_tile, int64_t first, int64_t last,
             std::vector<TileSpan>* spans) const override {
    if (q_tile >= static_cast<int64_t>(lo_.size())) return;
    last = std::min(last, static_cast<int64_t>(keys_[0].size()));
    const Query query{lo_[q_tile], hi_[q_tile], first, last};
    if (first < last) Descend(keys_.size() - 1, 0, query, spans);
  }

  void Keep(int64_t q_tile, int64_t key_tile, TileMask* mask) const override {
    if (SeesAll(q_tile, key_tile)) return;
    if (q_tile >= static_cast<int64_t>(lo_.size()) ||
        key_tile >= static_cast<int64_t>(keys_[0].size())) {
      return mask->fill(0);
    }
    const int64_t i = q_tile * kTile, j = key_tile * kTile;
    const int64_t queries = std::clamp<int64_t>(c_.lo.size() - i, 0, kTile);
    const int64_t keys = std::clamp<int64_t>(c_.x.size() - j, 0, kTile);
    TileMask seen{};
    if (lo_[q_tile].is_sorted && hi_[q_tile].is_sorted && keys_[0][key_tile].is_sorted) {
      // Key x is seen by the queries [ended, started).
      for (int64_t k = 0, started = 0, ended = 0; k < keys; ++k) {
        const int32_t x = c_.x[j + k];
        while (started < queries && c_.lo[i + started] <= x) ++started;
        while (ended < queries && c_.hi[i + ended] < x) ++ended;
        seen[k] = ended < started ? LowBits(started) & ~LowBits(ended) : 0;
      }
      for (int64_t k = 0; k < kTile; ++k) (*mask)[k] &= seen[k];
      return;
    }
    // Queries side by side often share their interval: segments, buckets.
    for (int64_t q = 0, end = 0; q < queries; q = end) {
      const int32_t lo = c_.lo[i + q], hi = c_.hi[i + q];
      end = q + 1;
      while (end < queries && c_.lo[i + end] == lo && c_.hi[i + end] == hi) ++end;
      const uint64_t bits = BitsBetween(q, end);
      for (int64_t k = 0; k < keys; ++k) {
        const int32_t x = c_.x[j + k];
        seen[k] |= lo <= x && x <= hi ? bits : 0;
      }
    }
    for (int64_t k = 0; k < kTile; ++k) (*mask)[k] &= seen[k];
  }

  // Known inside of a segment: the mask of a tile there follows from what this is combined with.
  TileShape Shape(int64_t q_tile, int64_t key_tile) const override {
    return SeesAll(q_tile, key_tile) ? TileShape{1, {0}} : TileShape{};
  }

 private:
  bool SeesAll(int64_t q_tile, int64_t key_tile) const {
    const bool is_cut = (q_tile + 1) * kTile > static_cast<int64_t>(c_.lo.size()) ||
                        (key_tile + 1) * kTile > static_cast<int64_t>(c_.x.size());
    return !is_cut && lo_[q_tile].max <= keys_[0][key_tile].min &&
           keys_[0][key_tile].max <= hi_[q_tile].min;
  }
  struct Query {
    Bounds lo, hi;
    int64_t first, last;  // key tiles
  };

  void Descend(size_t level, int64_t node, const Query& query, std::vector<TileSpan>* spans) const {
    int64_t width = 1;  // of a node, in tiles
    for (size_t l = 0; l < level; ++l) width *= kFan;
    const int64_t first = std::max(node * width, query.first);
    const int64_t last = std::min((node + 1) * width, query.last);
    const Bounds& x = keys_[level][node];
    if (first >= last || query.hi.max < x.min || query.lo.min > x.max) return;
    const bool full = query.lo.max <= x.min && x.max <= query.hi.min;
    if (full || level == 0) return Emit(first, last, full, spans);
    const int64_t end = std::min<int64_t>((node + 1) * kFan, keys_[level - 1].size());
    for (int64_t child = node * kFan; child < end; ++child) {
      Descend(level - 1, child, query, spans);
    }
  }

  const Coordinates c_;
  const Level lo_, hi_;  // of every query tile
  const std::vector<Level> keys_;
};

}  // namespace

Visible Within(Coordinates c) { return std::make_shared<WithinOf>(std::move(c)); }

Visible SameSegment(std::span<const int32_t> ids_q, std::span<const int32_t> ids_k) {
  Coordinates c{.lo = {ids_q.begin(), ids_q.end()},
                .hi = {ids_q.begin(), ids_q.end()},
                .x = {ids_k.begin(), ids_k.end()}};
  // A query of a negative id sees nothing.
  for (int32_t& id : c.lo) id = id < 0 ? kHighest : id;
  for (int32_t& id : c.hi) id = id < 0 ? kLowest : id;
  return std::make_shared<WithinOf>(std::move(c));
}

Visible NotAfter(std::span<const int32_t> q_positions, std::span<const int32_t> k_positions,
                 int64_t offset) {
  Coordinates c;
  c.lo.assign(q_positions.size(), kLowest);
  c.hi.reserve(q_positions.size());
  for (const int64_t position : q_positions) {
    c.hi.push_back(static_cast<int32_t>(
        std::clamp<int64_t>(position + std::clamp(offset, -kFar, kFar), kLowest, kHighest)));
  }
  c.x.assign(k_positions.begin(), k_positions.end());
  return Within(std::move(c));
}

}  // namespace attnd
