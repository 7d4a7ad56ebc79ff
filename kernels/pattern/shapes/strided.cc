#include "kernels/pattern/shapes/strided.h"

#include <algorithm>

#include "kernels/pattern/base/tiles.h"
#include "kernels/pattern/builder.h"
#include "kernels/pattern/orders.h"
#include "kernels/pattern/predicates/coordinates.h"
#include "kernels/pattern/predicates/sets.h"
#include "kernels/pattern/predicates/windows.h"
#include "kernels/pattern/shapes/residues.h"
#include "kernels/pattern/shapes/windows.h"

namespace attnd {
namespace {

// How many positions below x have a residue below `columns`.
int64_t InFirstColumns(int64_t x, int64_t stride, int64_t columns) {
  return FloorDiv(x, stride) * columns + std::min(Remainder(x, stride), columns);
}

// Pairs with (p - j) mod stride = 0, exact.
double CombPairs(const PatternSeq& seq, int64_t stride, bool beyond) {
  const int64_t nk = seq.lengths.nk, begin = seq.offset, end = begin + seq.lengths.nq;
  // Keys of a query's class, summed over the queries at [from, to).
  const auto of_class = [&](int64_t from, int64_t to) {
    if (from >= to) return 0.0;
    const int64_t more =
        InFirstColumns(to, stride, nk % stride) - InFirstColumns(from, stride, nk % stride);
    return static_cast<double>(to - from) * static_cast<double>(nk / stride) +
           static_cast<double>(more);
  };
  // Queries whose position is that of a key, the last key that they see.
  const int64_t first = std::clamp<int64_t>(begin, 0, nk), last = std::clamp(end, first, nk);
  const double own = static_cast<double>(last - first);
  const double earlier = SteppedSum(last - first, first, stride, stride, kFar) / stride;
  const double all =
      seq.causal ? earlier + of_class(std::max(begin, nk), end) : of_class(begin, end);
  return beyond ? all - own : all;
}

// Keys of the query's class; `beyond`: those at another position.
struct CombKeys {
  PatternSeq seq;
  int64_t stride;
  bool beyond;
};

PatternSpec SpecOf(const CombKeys& comb) {
  const auto& [seq, stride, beyond] = comb;
  PatternSpec spec{.Nq = seq.lengths.nq, .Nk = seq.lengths.nk};
  spec.query_rows = ResidueOrder(spec.Nq, seq.offset, stride);
  spec.key_rows = ResidueOrder(spec.Nk, 0, stride);
  const auto of_steps = [&spec, &comb](const Steps& steps) {
    return SameResidue(spec.query_rows, comb.seq.offset, spec.key_rows, spec.Nk, comb.stride,
                       steps);
  };
  if (seq.causal) {
    spec.visible = of_steps({.hi = beyond ? -1 : 0});
  } else {
    spec.visible = of_steps({});
    if (beyond) spec.visible = AndNot(spec.visible, of_steps({.lo = 0, .hi = 0}));
  }
  return spec;
}

PatternSource CombSource(const PatternSeq& seq, int64_t stride, bool beyond) {
  stride = std::min(stride, kFar);
  PatternCounts counts{.pairs = CombPairs(seq, stride, beyond)};
  const double rows = static_cast<double>(Tiles(seq.lengths.nq));
  // Whole tiles, and a cut one at each end of a row; where it holds several classes, all of theirs.
  const auto columns = static_cast<double>(Tiles(seq.lengths.nk)),
             class_rows = static_cast<double>(seq.lengths.nq) / static_cast<double>(stride),
             class_keys = static_cast<double>(seq.lengths.nk) / static_cast<double>(stride);
  const double classes = class_rows < kTile ? kTile / std::max(class_rows, 1.0) : 0;
  const double whole = counts.pairs / (kTile * kTile) / std::max(rows, 1.0);
  const double of_row = std::max(classes * class_keys / kTile, whole);
  counts.tiles = rows * std::min(of_row + 2, columns);
  PatternSource source =
      SourceOf(seq.Nq, seq.Nk, "comb", CombKeys{seq, stride, beyond}, counts, SpecOf);
  source.gathers = true;
  // More edges than a row of tiles stores are computed.
  source.is_counted = of_row <= 64;
  return source;
}

// The summary columns among the keys [0, Nk), ascending.
std::vector<int32_t> SummaryOf(const FixedSegments& f, int64_t Nk) {
  std::vector<int32_t> summary;
  const int64_t tail = Nk - Nk % f.stride;
  for (int64_t start = 0; start < Nk; start += f.stride) {
    int64_t first = start + f.stride - (f.vertical + 1) * f.summary;
    if (f.tail_summary && start == tail)
      first = std::max<int64_t>(0, std::min(first, Nk - f.summary));
    const int64_t end = std::min(first + f.summary, Nk);
    // The summary of a short tail may overlap the one before.
    if (!summary.empty()) first = std::max<int64_t>(first, summary.back() + 1);
    for (int64_t j = first; j < end; ++j) summary.push_back(static_cast<int32_t>(j));
  }
  return summary;
}

// Residues [first, last) are summaries.
int64_t FirstSummary(const FixedSegments& f) { return f.stride - (f.vertical + 1) * f.summary; }

// Whether position p is a summary; `columns`: those among the keys.
bool IsSummary(const FixedSegments& f, std::span<const int32_t> columns, int64_t Nk, int64_t p) {
  if (p >= 0 && p < Nk) return std::binary_search(columns.begin(), columns.end(), p);
  const int64_t r = p % f.stride < 0 ? p % f.stride + f.stride : p % f.stride;
  return r >= FirstSummary(f) && r < FirstSummary(f) + f.summary;
}

// The number of summary columns below x, and the sum of these numbers over the bounds 1 .. x.
struct SummaryKeys {
  const int64_t s, first, columns;  // columns [first, first + columns) of every s keys

  double Below(int64_t x) const {
    return static_cast<double>(x / s) * static_cast<double>(columns) +
           static_cast<double>(std::clamp<int64_t>(x % s - first, 0, columns));
  }
  double SumUpTo(int64_t x) const {
    const auto periods = static_cast<double>(x / s), c = static_cast<double>(columns);
    return c * static_cast<double>(s) * periods * (periods - 1) / 2 + periods * InPeriod(s) +
           static_cast<double>(x % s) * periods * c + InPeriod(x % s);
  }

 private:
  double InPeriod(int64_t x) const {
    const auto inside = static_cast<double>(std::clamp<int64_t>(x - first, 0, columns));
    const auto behind = static_cast<double>(std::max<int64_t>(x - first - columns, 0));
    return inside * (inside + 1) / 2 + behind * static_cast<double>(columns);
  }
};

// Keys or positions [begin, end).
struct Stretch {
  int64_t begin = 0, end = 0;

  int64_t Overlap(const Stretch& other) const {
    return std::max<int64_t>(std::min(end, other.end) - std::max(begin, other.begin), 0);
  }
};

// Where the columns of SummaryOf are: at the same places of all segments, but for those of a short
// last one that has them elsewhere.
class SummaryColumns {
 public:
  SummaryColumns(const FixedSegments& f, int64_t Nk)
      : s_(std::min(f.stride, kFar)),
        first_(PlaceOf(FirstSummary(f), f.stride)),
        columns_(PlaceOf(FirstSummary(f) + f.summary, f.stride) - first_) {
    const int64_t tail = Nk - Nk % s_;
    if (!f.tail_summary || tail == Nk) return;
    const int64_t first = std::clamp<int64_t>(Nk - f.summary, 0, tail + first_);
    // What it may share with the segment before counts there.
    const int64_t before = tail - s_ + first_ + columns_;
    short_ = {tail, Nk};
    of_short_ = {tail == 0 ? first : std::max(first, before), std::min(first + f.summary, Nk)};
  }

  int64_t segment() const { return s_; }
  // The keys below nk outside of a short last segment, and that segment's columns below nk.
  int64_t RegularKeys(int64_t nk) const { return IsShort() ? std::min(nk, short_.begin) : nk; }
  Stretch OfShort(int64_t nk) const {
    return {std::min(of_short_.begin, nk), std::min(of_short_.end, nk)};
  }
  SummaryKeys Regular() const { return {s_, first_, columns_}; }

  // Columns among positions [begin, end) of one segment.
  int64_t Within(const Stretch& positions) const {
    const int64_t start = FloorDiv(positions.begin, s_) * s_;
    const Stretch regular = {start + first_, start + first_ + columns_};
    const Stretch replaced = {std::max(regular.begin, short_.begin),
                              std::min(regular.end, short_.end)};
    return positions.Overlap(regular) - positions.Overlap(replaced) + positions.Overlap(of_short_);
  }
  int64_t short_begin() const { return short_.begin; }  // 0: there is none

 private:
  // A place in a segment that is cut to kFar: positions are within kFar / 2 of a border.
  static int64_t PlaceOf(int64_t place, int64_t stride) {
    if (stride <= kFar || place <= kFar / 2) return place;
    return std::max(kFar - (stride - place), kFar / 2);
  }
  bool IsShort() const { return short_.begin < short_.end; }

  const int64_t s_, first_, columns_;
  Stretch short_, of_short_;  // empty: there is none
};

// Pairs of queries and the columns [begin, end): all for Half::kGlobal, else those outside the own
// segment.
double ColumnPairs(const PatternSeq& seq, const Stretch& columns, int64_t segment, Half half) {
  if (columns.begin >= columns.end) return 0;
  const int64_t nq = seq.lengths.nq;
  // Pairs with columns below the start (+ shift) of the query's stretch of `unit` positions.
  const auto below = [&](int64_t unit, int64_t shift) {
    return SteppedSum(nq, seq.offset, unit, shift, columns.end) -
           SteppedSum(nq, seq.offset, unit, shift, columns.begin);
  };
  const double all = static_cast<double>(nq) * static_cast<double>(columns.end - columns.begin);
  if (half == Half::kGlobal) return seq.causal ? below(1, 1) : all;
  const double earlier = below(segment, 0);
  return seq.causal ? earlier : all - (below(segment, segment) - earlier);
}

// The same of columns at the same places of all segments, among the keys [0, nk).
double RegularPairs(const PatternSeq& seq, const SummaryKeys& summary, int64_t nk, Half half) {
  const int64_t nq = seq.lengths.nq, s = summary.s;
  if (half == Half::kGlobal && seq.causal) {
    // Bounds offset + 1 .. offset + nq, each at most nk.
    const int64_t begin = std::clamp<int64_t>(seq.offset, 0, nk);
    const int64_t end = std::clamp<int64_t>(seq.offset + nq, begin, nk);
    const int64_t beyond = std::clamp<int64_t>(seq.offset + nq - nk, 0, nq);
    return summary.SumUpTo(end) - summary.SumUpTo(begin) +
           static_cast<double>(beyond) * summary.Below(nk);
  }
  if (half == Half::kGlobal) return static_cast<double>(nq) * summary.Below(nk);
  // Pairs with keys below the start (+ shift) of the segment of the query, for columns of `keys`
  // keys.
  const auto of_columns = [&](int64_t columns, int64_t keys) {
    const auto below = [&](int64_t shift) {
      return SteppedSum(nq, seq.offset, s, shift, s * keys) / static_cast<double>(s);
    };
    const double all = static_cast<double>(nq) * static_cast<double>(keys);
    const double pairs = seq.causal ? below(0) : all - (below(s) - below(0));
    return pairs * static_cast<double>(columns);
  };
  // The last segment may be short: its first columns have one key more.
  const int64_t longer = std::clamp<int64_t>(nk % s - summary.first, 0, summary.columns);
  return of_columns(longer, nk / s + 1) + of_columns(summary.columns - longer, nk / s);
}

// What rows at summary positions, which see all keys, see beyond their segment and its columns:
// segment by segment, of which those between two borders are alike.
double RowPairs(const PatternSeq& seq, const SummaryColumns& summary) {
  const int64_t s = summary.segment(), nk = seq.lengths.nk;
  const Stretch rows{seq.offset, seq.offset + seq.lengths.nq};
  if (rows.begin >= rows.end || nk == 0) return 0;
  const auto seen = [&](int64_t begin, int64_t end) {  // of the keys in a segment
    const Stretch keys{std::clamp<int64_t>(begin, 0, nk), std::clamp<int64_t>(end, 0, nk)};
    return keys.begin < keys.end ? keys.end - keys.begin - summary.Within(keys) : 0;
  };
  const double columns = summary.Regular().Below(summary.RegularKeys(nk)) +
                         static_cast<double>(summary.OfShort(nk).end - summary.OfShort(nk).begin);
  std::vector<int64_t> borders;
  for (const int64_t at : {rows.begin, rows.end - 1, int64_t{0}, nk, summary.short_begin(),
                           summary.short_begin() - 1}) {
    borders.insert(borders.end(), {FloorDiv(at, s), FloorDiv(at, s) + 1});
  }
  const int64_t first = FloorDiv(rows.begin, s), last = FloorDiv(rows.end - 1, s) + 1;
  for (int64_t& border : borders) border = std::clamp(border, first, last);
  std::sort(borders.begin(), borders.end());
  double pairs = 0;
  for (size_t b = 0; b + 1 < borders.size(); ++b) {
    const int64_t begin = borders[b] * s, end = begin + s;
    const Stretch own{std::max(begin, rows.begin), std::min(end, rows.end)};
    const auto alike = static_cast<double>(borders[b + 1] - borders[b]);
    if (alike == 0) continue;
    const double more = static_cast<double>(nk - seen(begin, end)) - columns;
    pairs += alike * static_cast<double>(summary.Within(own)) * more;
  }
  return pairs;
}

// Pairs of queries and summary columns: all for Half::kGlobal, else those outside the own segment,
// and what rows that see everything see beyond that. Exact.
double SummaryPairs(const PatternSeq& seq, const FixedSegments& f, Half half) {
  const SummaryColumns summary(f, seq.Nk);
  const int64_t nk = seq.lengths.nk;
  const double pairs = RegularPairs(seq, summary.Regular(), summary.RegularKeys(nk), half) +
                       ColumnPairs(seq, summary.OfShort(nk), summary.segment(), half);
  return f.horizontal ? pairs + RowPairs(seq, summary) : pairs;
}

// Summary columns and, with kBoth, the own segment.
struct FixedKeys {
  PatternSeq seq;
  FixedSegments segments;
  Half half;
};

PatternSpec SpecOf(const FixedKeys& fixed) {
  const auto& [seq, f, half] = fixed;
  PatternSpec spec{.Nq = seq.lengths.nq};
  const std::vector<int32_t> columns = SummaryOf(f, seq.Nk);
  std::vector<int32_t> summary = columns;
  while (!summary.empty() && summary.back() >= seq.lengths.nk) summary.pop_back();
  // Queries and keys are compared by position or, to leave out the own segment, by segment.
  const int64_t unit = half == Half::kGlobal ? 1 : std::min(f.stride, kFar);
  Coordinates c{.lo = std::vector<int32_t>(spec.Nq), .hi = {}, .x = {}};
  for (int64_t i = 0; i < spec.Nq; ++i) {
    // Any place beyond all keys shows the same keys; clipped to fit.
    const int64_t place = FloorDiv(i + seq.offset, unit);
    c.lo[i] = static_cast<int32_t>(std::clamp<int64_t>(place, -1, seq.Nk));
  }
  c.hi = c.lo;
  for (const int32_t j : summary) c.x.push_back(static_cast<int32_t>(j / unit));
  if (seq.causal) {
    std::fill(c.lo.begin(), c.lo.end(), INT32_MIN);
    if (half == Half::kBoth) {
      for (int32_t& hi : c.hi) --hi;
    }
  }
  spec.visible = seq.causal || half == Half::kBoth ? Within(std::move(c)) : nullptr;
  if (half == Half::kGlobal) {
    spec.key_rows = std::move(summary);
    spec.Nk = static_cast<int64_t>(spec.key_rows.size());
    return spec;
  }
  Visible left = Windows({.block = f.stride, .offset = seq.offset, .causal = seq.causal});
  Visible right = seq.causal ? spec.visible : Not(spec.visible);
  if (f.horizontal) {
    std::vector<int32_t> rows;
    for (int64_t i = 0; i < spec.Nq; ++i) {
      if (IsSummary(f, columns, seq.Nk, i + seq.offset)) rows.push_back(static_cast<int32_t>(i));
    }
    left = Or(left, Queries(rows));
    right = AndNot(right, Queries(rows));
  }
  spec.key_rows = AppendedOrder(seq.lengths.nk, summary);
  spec.Nk = static_cast<int64_t>(spec.key_rows.size());
  spec.visible = Beside(left, Tiles(seq.lengths.nk), right);
  return spec;
}

}  // namespace

PatternParts StridedParts(const PatternSeq& seq, int64_t stride, Half half) {
  PatternParts parts;
  if (half != Half::kGlobal) {
    const Window near{
        .before = stride - 1, .after = stride - 1, .offset = seq.offset, .causal = seq.causal};
    parts.push_back(WindowSource(seq.Nq, seq.Nk, near, seq.lengths));
  }
  if (half != Half::kLocal) parts.push_back(CombSource(seq, stride, half == Half::kBoth));
  return parts;
}

PatternSource FixedSource(const PatternSeq& seq, const FixedSegments& segments, Half half) {
  const FixedSegments& f = segments;
  const Window own{.block = f.stride, .offset = seq.offset, .causal = seq.causal};
  const PatternSource near = WindowSource(seq.Nq, seq.Nk, own, seq.lengths);
  if (half == Half::kLocal) return near;
  PatternCounts counts{.pairs = SummaryPairs(seq, f, half)};
  counts.tiles = counts.pairs / (kTile * kTile) + 2 * static_cast<double>(Tiles(seq.lengths.nq));
  if (half == Half::kBoth) {
    counts.pairs += near.visible_pairs;
    counts.tiles += near.visible_tiles;
  }
  PatternSource source = SourceOf(seq.Nq, seq.Nk, "fixed", FixedKeys{seq, f, half}, counts, SpecOf);
  source.gathers = true;
  source.is_counted = !f.horizontal && !f.tail_summary;  // pairs are, tiles are not
  return source;
}

}  // namespace attnd
