// Predicates by coordinates of slots: a query sees the keys whose coordinate lies in its interval.
#include "kernels/pattern/predicates/coordinates.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <limits>
#include <tuple>

#include "kernels/pattern/base/tiles.h"

namespace attnd {
namespace {

constexpr int32_t kLowest = std::numeric_limits<int32_t>::min();
constexpr int32_t kHighest = std::numeric_limits<int32_t>::max();

// The range of some numbers.
struct Bounds {
  int32_t min = kHighest, max = kLowest;
  bool is_sorted = true;  // of one tile: the numbers ascend
  void Add(const Bounds& other) {
    min = std::min(min, other.min);
    max = std::max(max, other.max);
  }
};

// Level 0: bounds of every tile; level l + 1: bounds of kFan nodes of level l. A query tile skips
// the children of a node if it sees all of it or nothing, so sorted coordinates cost a logarithm.
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

int64_t SizeOf(const Level& level) { return static_cast<int64_t>(level.size() * sizeof(Bounds)); }

bool IsSorted(const Level& tiles) {
  return std::all_of(tiles.begin(), tiles.end(), [](const Bounds& t) { return t.is_sorted; });
}

// The bounds of the queries of a tile, ascending, with their queries, so that the queries that see
// a key are found by a search instead of 64 comparisons. Memory: 24 bytes a query.
struct SortedTile {
  int32_t bounds[kTile];
  uint64_t queries[kTile];

  // Queries whose bound is `x`. REQUIRES: made by Points.
  uint64_t At(int32_t x) const {
    const int64_t at = Search([x](int32_t bound) { return bound < x; });
    return bounds[at] == x ? queries[at] : 0;
  }
  // Queries of the bounds before the first one that is not `before`. REQUIRES: made by Prefixes.
  template <class Before>
  uint64_t Until(const Before& before) const {
    const int64_t at = Search(before);
    return before(bounds[at]) ? queries[kTile - 1] : at == 0 ? 0 : queries[at - 1];
  }

  // queries[i]: all whose bound is bounds[i], where i is the first of these.
  static SortedTile Points(std::span<const int32_t> bounds, uint64_t exists) {
    SortedTile tile = Sorted(bounds, exists);
    for (int64_t i = kTile - 1; i > 0; --i) {
      if (tile.bounds[i - 1] == tile.bounds[i]) tile.queries[i - 1] |= tile.queries[i];
    }
    return tile;
  }
  // queries[i]: all up to bounds[i].
  static SortedTile Prefixes(std::span<const int32_t> bounds) {
    SortedTile tile = Sorted(bounds, LowBits(static_cast<int64_t>(bounds.size())));
    for (int64_t i = 1; i < kTile; ++i) tile.queries[i] |= tile.queries[i - 1];
    return tile;
  }

 private:
  // queries[i]: the query of bounds[i]; none where no query exists.
  static SortedTile Sorted(std::span<const int32_t> bounds, uint64_t exists) {
    std::pair<int32_t, uint64_t> order[kTile];
    for (int64_t q = 0; q < kTile; ++q) {
      const bool is_there = (exists >> q & 1) != 0;
      order[q] = {is_there ? bounds[q] : kHighest, is_there ? uint64_t{1} << q : 0};
    }
    std::sort(std::begin(order), std::end(order));
    SortedTile tile;
    for (int64_t i = 0; i < kTile; ++i) std::tie(tile.bounds[i], tile.queries[i]) = order[i];
    return tile;
  }
  // The first bound that is not `before`, or the last one. Without branches, which would be
  // mispredicted.
  template <class Before>
  int64_t Search(const Before& before) const {
    int64_t at = 0;
    for (int64_t step = kTile / 2; step > 0; step /= 2) {
      at += before(bounds[at + step - 1]) ? step : 0;
    }
    return at;
  }
};

class WithinOf : public Predicate {
 public:
  explicit WithinOf(Coordinates c)
      : c_(std::move(c)), lo_(BoundsOf(c_.lo)), hi_(BoundsOf(c_.hi)), keys_(TreeOf(c_.x)) {
    assert(c_.lo.size() == c_.hi.size());
    if (!IsSorted(lo_) || !IsSorted(hi_) || !IsSorted(keys_[0])) Sort();
  }
  std::string key() const override { return KeyOf("within", c_); }

  void Spans(int64_t q_tile, int64_t first, int64_t last,
             std::vector<TileSpan>* spans) const override {
    if (q_tile >= static_cast<int64_t>(lo_.size())) return;
    last = std::min(last, static_cast<int64_t>(keys_[0].size()));
    if (first >= last) return;
    const size_t top = keys_.size() - 1;
    std::array<Query, kFew> few;
    const int64_t count = FewIntervals(q_tile, first, last, &few);
    if (count < 0) return Descend(top, 0, {lo_[q_tile], hi_[q_tile], first, last}, spans);
    if (count == 1) return Descend(top, 0, few[0], spans);
    // Tiles between the intervals are not visible.
    std::vector<TileSpan> of_each;
    for (int64_t i = 0; i < count; ++i) Descend(top, 0, few[i], &of_each);
    std::sort(of_each.begin(), of_each.end(),
              [](const TileSpan& a, const TileSpan& b) { return a.first < b.first; });
    int64_t at = first;
    for (const TileSpan& span : of_each) {
      Emit(std::max(at, span.first), span.last, /*full=*/false, spans);
      at = std::max(at, span.last);
    }
  }

  void Keep(int64_t q_tile, int64_t key_tile, TileMask* mask) const override {
    if (SeesAll(q_tile, key_tile)) return;
    if (q_tile >= static_cast<int64_t>(lo_.size()) ||
        key_tile >= static_cast<int64_t>(keys_[0].size())) {
      return mask->fill(0);
    }
    const Bounds& x_bounds = keys_[0][key_tile];
    if (hi_[q_tile].max < x_bounds.min || lo_[q_tile].min > x_bounds.max) return mask->fill(0);
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
    for (int64_t k = 0; k < keys; ++k) {
      const int32_t x = c_.x[j + k];
      seen[k] = is_points_ ? by_lo_[q_tile].At(x) : by_lo_[q_tile].Until([x](int32_t lo) {
        return lo <= x;
      }) & ~by_hi_[q_tile].Until([x](int32_t hi) { return hi < x; });
    }
    for (int64_t k = 0; k < kTile; ++k) (*mask)[k] &= seen[k];
  }

  int64_t bytes() const override {
    int64_t bytes = SizeOf(lo_) + SizeOf(hi_);
    for (const Level& level : keys_) bytes += SizeOf(level);
    bytes += static_cast<int64_t>((c_.lo.size() + c_.hi.size() + c_.x.size()) * sizeof(int32_t));
    return bytes + static_cast<int64_t>((by_lo_.size() + by_hi_.size()) * sizeof(SortedTile));
  }

  // Known where all pairs are visible, inside a segment: there the other operand of And decides.
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

  // The distinct intervals of the queries of a tile if there are at most kFew, each of consecutive
  // queries, as for blocks and segments. Returns their number, else -1.
  static constexpr int64_t kFew = 4;
  int64_t FewIntervals(int64_t q_tile, int64_t first, int64_t last,
                       std::array<Query, kFew>* few) const {
    const int64_t begin = q_tile * kTile;
    const int64_t end = std::min<int64_t>(begin + kTile, c_.lo.size());
    int64_t count = 0;
    for (int64_t i = begin; i < end; ++i) {
      const int32_t lo = c_.lo[i], hi = c_.hi[i];
      if (i > begin && lo == c_.lo[i - 1] && hi == c_.hi[i - 1]) continue;
      if (count == kFew) return -1;
      (*few)[count++] = {{lo, lo}, {hi, hi}, first, last};
    }
    return count;
  }

  void Descend(size_t level, int64_t node, const Query& query, std::vector<TileSpan>* spans) const {
    int64_t width = 1;  // of a node, in tiles
    for (size_t l = 0; l < level; ++l) width *= kFan;
    const int64_t first = std::max(node * width, query.first);
    const int64_t last = std::min((node + 1) * width, query.last);
    const Bounds& x = keys_[level][node];
    // A query with lo > hi sees nothing.
    if (first >= last || query.lo.min > query.hi.max || query.hi.max < x.min ||
        query.lo.min > x.max)
      return;
    const bool full = query.lo.max <= x.min && x.max <= query.hi.min;
    if (full || level == 0) return Emit(first, last, full, spans);
    const int64_t end = std::min<int64_t>((node + 1) * kFan, keys_[level - 1].size());
    for (int64_t child = node * kFan; child < end; ++child) {
      Descend(level - 1, child, query, spans);
    }
  }

  void Sort() {
    const int64_t n = static_cast<int64_t>(c_.lo.size());
    is_points_ = true;
    for (int64_t i = 0; i < n; ++i) is_points_ = is_points_ && c_.lo[i] >= c_.hi[i];
    for (int64_t i = 0; i < n; i += kTile) {
      const std::span lo = std::span(c_.lo).subspan(i, std::min(kTile, n - i));
      const std::span hi = std::span(c_.hi).subspan(i, lo.size());
      if (!is_points_) {
        by_lo_.push_back(SortedTile::Prefixes(lo));
        by_hi_.push_back(SortedTile::Prefixes(hi));
        continue;
      }
      uint64_t exists = 0;
      for (size_t q = 0; q < lo.size(); ++q) exists |= uint64_t{lo[q] == hi[q]} << q;
      by_lo_.push_back(SortedTile::Points(lo, exists));
    }
  }

  const Coordinates c_;
  const Level lo_, hi_;  // of every query tile
  const std::vector<Level> keys_;
  // Of every query tile; empty if all tiles are sorted. is_points_: every query sees one number or
  // nothing.
  std::vector<SortedTile> by_lo_, by_hi_;
  bool is_points_ = false;
};

}  // namespace

Visible Within(Coordinates c) { return std::make_shared<WithinOf>(std::move(c)); }

Visible SameSegment(std::span<const int32_t> ids_q, std::span<const int32_t> ids_k) {
  Coordinates c{.lo = {ids_q.begin(), ids_q.end()},
                .hi = {ids_q.begin(), ids_q.end()},
                .x = {ids_k.begin(), ids_k.end()}};
  // A query with a negative id sees nothing.
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
