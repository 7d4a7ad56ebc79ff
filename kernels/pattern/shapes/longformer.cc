// Sliding windows, dilated or not, with global tokens.
#include "kernels/pattern/shapes/longformer.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "kernels/pattern/builder.h"
#include "kernels/pattern/orders.h"
#include "kernels/pattern/predicates/coordinates.h"
#include "kernels/pattern/predicates/sets.h"
#include "kernels/pattern/predicates/windows.h"
#include "kernels/pattern/shapes/residues.h"
#include "kernels/pattern/shapes/windows.h"
#include "kernels/pattern/tiles.h"

namespace attnd {
namespace {

using Positions = std::vector<int32_t>;

// Query rows below nq at these positions.
Positions RowsAt(std::span<const int32_t> positions, int64_t offset, int64_t nq) {
  Positions rows;
  for (const int32_t p : positions) {
    if (p - offset >= 0 && p - offset < nq) rows.push_back(static_cast<int32_t>(p - offset));
  }
  return rows;
}

Positions Below(std::span<const int32_t> positions, int64_t nk) {
  Positions below;
  std::copy_if(positions.begin(), positions.end(), std::back_inserter(below),
               [nk](int32_t j) { return j < nk; });
  return below;
}

// Bit of every row below n that is in `rows`.
std::vector<bool> Bits(const Positions& rows, int64_t n) {
  std::vector<bool> bits(n);
  for (const int32_t row : rows) bits[row] = true;
  return bits;
}

// Slots of an order whose row is in `rows`, all below n.
Positions SlotsOf(const RowOrder& order, const Positions& rows, int64_t n) {
  const std::vector<bool> bits = Bits(rows, n);
  Positions slots;
  for (size_t s = 0; s < order.size(); ++s) {
    if (bits[order[s]]) slots.push_back(static_cast<int32_t>(s));
  }
  return slots;
}

// Of an order for causality alone: far before and behind all keys are cut, so that they fit.
Positions PositionsOf(const RowOrder& query_rows, int64_t offset) {
  constexpr int64_t kBehind = int64_t{1} << 30;
  Positions positions(query_rows);
  for (int32_t& p : positions) {
    p = static_cast<int32_t>(std::clamp<int64_t>(p + offset, -1, kBehind));
  }
  return positions;
}

// What the rows of a pattern see, in steps of the dilation, and which rows these are.
struct Longformer {
  Window steps;
  int64_t dilation = 1;
  Positions globals;
  bool with_global_rows = false;
};

// Natural order; a global key is one more tile of every row.
struct NaturalOrder {
  int64_t Nq, Nk;
  Longformer longformer;
};

PatternPlan PlanOf(const NaturalOrder& natural) {
  const Longformer& f = natural.longformer;
  const int64_t offset = f.steps.offset;
  const Visible rows = Queries(RowsAt(f.globals, offset, natural.Nq));
  Visible seen = Or(Windows(f.steps), Keys(f.globals));
  seen = f.with_global_rows ? Or(seen, rows) : AndNot(seen, rows);
  if (f.steps.causal) seen = And(Band(PatternBuilder::kUnbounded, offset), seen);
  return {.Nq = natural.Nq, .Nk = natural.Nk, .visible = seen};
}

// Local rows and keys in residue order, then global keys once more, for the local rows, and global
// rows, for the keys where they first stand.
struct GatheredOrder {
  Lengths lengths;
  Longformer longformer;
};

PatternPlan PlanOf(const GatheredOrder& gathered) {
  const Longformer& f = gathered.longformer;
  const int64_t nq = gathered.lengths.nq, nk = gathered.lengths.nk, offset = f.steps.offset;
  const bool causal = f.steps.causal;
  const Positions keys = Below(f.globals, nk), rows = RowsAt(f.globals, offset, nq);
  PatternPlan plan{.query_rows = ResidueOrder(nq, offset, f.dilation),
                   .key_rows = ResidueOrder(nk, 0, f.dilation)};
  Visible near;
  if (f.dilation == 1) {
    // A row that leaves a hole does not shift the windows of others against the tiles.
    for (const int32_t i : rows) plan.query_rows[i] = -1;
    near = AndNot(Windows(f.steps), Keys(keys));
  } else {
    std::erase_if(plan.query_rows,
                  [is_global = Bits(rows, nq)](int32_t i) { return is_global[i]; });
    const Steps steps{.lo = -f.steps.before, .hi = causal ? 0 : f.steps.after};
    near = AndNot(SameResidue(plan.query_rows, offset, plan.key_rows, nk, f.dilation, steps),
                  Keys(SlotsOf(plan.key_rows, keys, nk)));
  }
  const Visible everything = Band(PatternBuilder::kUnbounded, kFar);
  const int64_t local = Tiles(static_cast<int64_t>(plan.query_rows.size()));
  Visible own = everything, again = everything;
  if (causal) {
    own = NotAfter(PositionsOf(rows, offset), plan.key_rows, 0);
    again = NotAfter(PositionsOf(plan.query_rows, offset), keys, 0);
  }
  plan.visible = Over(Beside(near, Tiles(nk), again), local, Beside(own, Tiles(nk), Keys({})));
  plan.key_rows = Appended(plan.key_rows, keys);
  if (f.with_global_rows) plan.query_rows = Appended(plan.query_rows, rows);
  plan.Nq = static_cast<int64_t>(plan.query_rows.size());
  plan.Nk = static_cast<int64_t>(plan.key_rows.size());
  return plan;
}

// Keys that every row of tiles may look at in vain for the sake of natural order: a tile of globals
// alone is as wide as it has keys, but gathering costs about half a tile (tests/bench/density.py).
constexpr int64_t kMostIdle = kTile / 2;

int64_t TilesWith(std::span<const int32_t> slots) {
  int64_t tiles = 0, last = -1;
  for (const int32_t s : slots) {
    tiles += s / kTile != last;
    last = s / kTile;
  }
  return tiles;
}

// Pairs of the global rows.
double GlobalPairs(const PatternSeq& row, const Positions& rows) {
  const int64_t nk = row.lengths.nk;
  double pairs = 0;
  for (const int32_t i : rows) {
    pairs += static_cast<double>(row.causal ? std::clamp<int64_t>(i + row.offset + 1, 0, nk) : nk);
  }
  return pairs;
}

// What the global rows see.
struct GlobalRows {
  Positions rows;
  int64_t nk, offset;
  bool causal;
};

PatternPlan PlanOf(const GlobalRows& g) {
  PatternPlan plan{.Nq = static_cast<int64_t>(g.rows.size()), .Nk = g.nk, .query_rows = g.rows};
  if (g.causal) {
    Coordinates c{.lo = Positions(g.rows.size(), 0), .hi = PositionsOf(g.rows, g.offset), .x = {}};
    c.x.resize(g.nk);
    for (int64_t j = 0; j < g.nk; ++j) c.x[j] = static_cast<int32_t>(j);
    plan.visible = Within(std::move(c));
  }
  return plan;
}

PatternSource LongformerSource(const PatternSeq& row, Longformer f) {
  f.dilation = std::min(f.dilation, kFar);
  f.steps.before = f.steps.after = std::min(f.steps.before, kFar);
  f.steps.offset = row.offset;
  f.steps.causal = row.causal;
  if (f.globals.empty() && f.dilation == 1) {
    return WindowSource(row.Nq, row.Nk, f.steps, row.lengths);
  }
  const auto g = static_cast<int64_t>(f.globals.size());
  const bool is_natural = f.dilation == 1 && TilesWith(f.globals) * kTile - g <= kMostIdle;
  // About: as if the keys of a class were a sequence of their own.
  const Lengths of_class{row.lengths.nq / f.dilation + 1, row.lengths.nk / f.dilation + 1};
  Window class_steps = Canonical(of_class.nq, of_class.nk, f.steps);
  class_steps.offset = 0;
  // Short classes share their tiles; a row of tiles meets a cut one at either end.
  const double share =
      std::min(1.0, static_cast<double>(std::max(of_class.nq, of_class.nk)) / kTile);
  const double tiles = static_cast<double>(Tiles(row.lengths.nq));
  const double key_tiles = static_cast<double>(Tiles(row.lengths.nk));
  const auto dilation = static_cast<double>(f.dilation);
  PatternCounts counts{.pairs = dilation * WindowPairs(of_class, class_steps) +
                                static_cast<double>(g * row.lengths.nq),
                       .tiles = dilation * share * WindowTiles(of_class, class_steps) + 2 * tiles};
  if (f.with_global_rows) {
    const Positions rows = RowsAt(f.globals, row.offset, row.lengths.nq);
    counts.pairs += GlobalPairs(row, rows);
    counts.tiles += static_cast<double>(Tiles(static_cast<int64_t>(rows.size()))) * key_tiles;
  }
  counts.pairs = std::min(
      counts.pairs, static_cast<double>(row.lengths.nq) * static_cast<double>(row.lengths.nk));
  counts.tiles = std::min(counts.tiles, tiles * key_tiles);
  counts.tiles += static_cast<double>(Tiles(g)) * tiles;
  PatternSource source = is_natural ? SourceOf(row.Nq, row.Nk, "longformer",
                                               NaturalOrder{row.Nq, row.Nk, f}, counts, PlanOf)
                                    : SourceOf(row.Nq, row.Nk, "longformer gathered",
                                               GatheredOrder{row.lengths, f}, counts, PlanOf);
  source.gathers = !is_natural;
  source.is_counted = false;
  return source;
}

}  // namespace

PatternSource LongformerLocal(const PatternSeq& row, int64_t window, int64_t dilation,
                              std::span<const int32_t> globals) {
  return LongformerSource(row, {.steps = {.before = window},
                                .dilation = dilation,
                                .globals = {globals.begin(), globals.end()}});
}

PatternSource LongformerBoth(const PatternSeq& row, int64_t window, int64_t dilation,
                             std::span<const int32_t> globals) {
  return LongformerSource(row, {.steps = {.before = window},
                                .dilation = dilation,
                                .globals = {globals.begin(), globals.end()},
                                .with_global_rows = true});
}

PatternSource LongformerGlobal(const PatternSeq& row, std::span<const int32_t> globals) {
  const auto [nq, nk] = row.lengths;
  const Positions rows = RowsAt(globals, row.offset, nq);
  PatternCounts counts{.pairs = GlobalPairs(row, rows)};
  counts.tiles = static_cast<double>(Tiles(static_cast<int64_t>(rows.size())) * Tiles(nk));
  PatternSource source = SourceOf(row.Nq, row.Nk, "globals",
                                  GlobalRows{rows, nk, row.offset, row.causal}, counts, PlanOf);
  source.gathers = true;
  return source;
}

}  // namespace attnd
