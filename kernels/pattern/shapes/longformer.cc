#include "kernels/pattern/shapes/longformer.h"

#include <algorithm>
#include <iterator>
#include <numeric>

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

// Bit i: row i < n is in `rows`.
std::vector<bool> Bits(const Positions& rows, int64_t n) {
  std::vector<bool> bits(n);
  for (const int32_t row : rows) bits[row] = true;
  return bits;
}

// Slots whose row is in `rows`; all rows are below n.
Positions SlotsOf(const RowOrder& order, const Positions& rows, int64_t n) {
  const std::vector<bool> bits = Bits(rows, n);
  Positions slots;
  for (size_t s = 0; s < order.size(); ++s) {
    if (bits[order[s]]) slots.push_back(static_cast<int32_t>(s));
  }
  return slots;
}

// Positions for causal comparisons alone, clipped to fit: before all keys or behind all of them.
Positions PositionsOf(const RowOrder& query_rows, int64_t offset) {
  constexpr int64_t kBehind = int64_t{1} << 30;
  Positions positions(query_rows);
  for (int32_t& p : positions) {
    p = static_cast<int32_t>(std::clamp<int64_t>(p + offset, -1, kBehind));
  }
  return positions;
}

// The window in steps of the dilation, the globals, and which rows the pattern shows.
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

PatternSpec SpecOf(const NaturalOrder& natural) {
  const Longformer& f = natural.longformer;
  const int64_t offset = f.steps.offset;
  const Visible rows = Queries(RowsAt(f.globals, offset, natural.Nq));
  Visible seen = Or(Windows(f.steps), Keys(f.globals));
  seen = f.with_global_rows ? Or(seen, rows) : AndNot(seen, rows);
  if (f.steps.causal) seen = And(Band(kUnbounded, offset), seen);
  return {.Nq = natural.Nq, .Nk = natural.Nk, .visible = seen};
}

// Local rows and all keys in residue order. Global keys follow once more for the local rows; global
// rows follow the local ones and see the keys at their first place.
struct GatheredOrder {
  Lengths lengths;
  Longformer longformer;
};

PatternSpec SpecOf(const GatheredOrder& gathered) {
  const Longformer& f = gathered.longformer;
  const int64_t nq = gathered.lengths.nq, nk = gathered.lengths.nk, offset = f.steps.offset;
  const bool causal = f.steps.causal;
  const Positions keys = Below(f.globals, nk), rows = RowsAt(f.globals, offset, nq);
  PatternSpec spec{.query_rows = ResidueOrder(nq, offset, f.dilation),
                   .key_rows = ResidueOrder(nk, 0, f.dilation)};
  Visible near;
  if (f.dilation == 1) {
    // An empty slot for a global row, so that the windows of the others stay aligned with tiles.
    for (const int32_t i : rows) spec.query_rows[i] = -1;
    near = AndNot(Windows(f.steps), Keys(keys));
  } else {
    std::erase_if(spec.query_rows,
                  [is_global = Bits(rows, nq)](int32_t i) { return is_global[i]; });
    const Steps steps{.lo = -f.steps.before, .hi = causal ? 0 : f.steps.after};
    near = AndNot(SameResidue(spec.query_rows, offset, spec.key_rows, nk, f.dilation, steps),
                  Keys(SlotsOf(spec.key_rows, keys, nk)));
  }
  const Visible everything = Band(kUnbounded, kFar);
  const int64_t local = Tiles(static_cast<int64_t>(spec.query_rows.size()));
  Visible own = everything, again = everything;
  if (causal) {
    own = NotAfter(PositionsOf(rows, offset), spec.key_rows, 0);
    again = NotAfter(PositionsOf(spec.query_rows, offset), keys, 0);
  }
  spec.visible = Over(Beside(near, Tiles(nk), again), local, Beside(own, Tiles(nk), Keys({})));
  spec.key_rows = Appended(spec.key_rows, keys);
  if (f.with_global_rows) spec.query_rows = Appended(spec.query_rows, rows);
  spec.Nq = static_cast<int64_t>(spec.query_rows.size());
  spec.Nk = static_cast<int64_t>(spec.key_rows.size());
  return spec;
}

int64_t TilesWith(std::span<const int32_t> slots) {
  int64_t tiles = 0, last = -1;
  for (const int32_t s : slots) {
    tiles += s / kTile != last;
    last = s / kTile;
  }
  return tiles;
}

// Pairs of the global rows.
double GlobalPairs(const PatternSeq& seq, const Positions& rows) {
  const int64_t nk = seq.lengths.nk;
  double pairs = 0;
  for (const int32_t i : rows) {
    pairs += static_cast<double>(seq.causal ? std::clamp<int64_t>(i + seq.offset + 1, 0, nk) : nk);
  }
  return pairs;
}

// The global rows alone.
struct GlobalRows {
  Positions rows;
  int64_t nk, offset;
  bool causal;
};

PatternSpec SpecOf(const GlobalRows& g) {
  PatternSpec spec{.Nq = static_cast<int64_t>(g.rows.size()), .Nk = g.nk, .query_rows = g.rows};
  if (g.causal) {
    Coordinates c{.lo = Positions(g.rows.size(), 0), .hi = PositionsOf(g.rows, g.offset), .x = {}};
    c.x.resize(g.nk);
    for (int64_t j = 0; j < g.nk; ++j) c.x[j] = static_cast<int32_t>(j);
    spec.visible = Within(std::move(c));
  }
  return spec;
}

// Pairs of the window alone, which has a diagonal j - i = offset + m dilation for each of its steps
// m. Exact.
double DilatedPairs(const Lengths& n, const Longformer& f) {
  const int64_t d = f.dilation, offset = f.steps.offset;
  // Others hold no pair.
  const int64_t first = std::max(-f.steps.before, FloorDiv(-n.nq - offset, d) + 1);
  const int64_t last = std::min(f.steps.causal ? 0 : f.steps.after, FloorDiv(n.nk - 1 - offset, d));
  if (first > last) return 0;
  // Of a diagonal: the keys below nq + j - i, less those below j - i.
  const auto keys_below = [&](int64_t shift) {
    return SteppedSum((last - first + 1) * d, 0, d, offset + first * d + shift, n.nk);
  };
  return (keys_below(n.nq) - keys_below(0)) / static_cast<double>(d);
}

PatternSource WithLocalRows(const PatternSeq& seq, Longformer f) {
  f.dilation = std::min(f.dilation, kFar);
  f.steps.before = f.steps.after = std::min(f.steps.before, kFar);
  f.steps.offset = seq.offset;
  f.steps.causal = seq.causal;
  if (f.globals.empty() && f.dilation == 1) {
    return WindowSource(seq.Nq, seq.Nk, f.steps, seq.lengths);
  }
  const auto g = static_cast<int64_t>(f.globals.size());
  // A tile that holds one global key is attended to as a whole.
  const int64_t idle_keys = TilesWith(f.globals) * kTile - g;
  const bool is_natural = f.dilation == 1 && idle_keys <= seq.tuning.device.most_idle_keys;
  // Tiles: about, as if each residue class were a sequence of its own.
  const Lengths of_class{seq.lengths.nq / f.dilation + 1, seq.lengths.nk / f.dilation + 1};
  Window class_steps = Canonical(of_class.nq, of_class.nk, f.steps);
  class_steps.offset = 0;
  // Short classes share their tiles; a row of tiles meets a cut one at either end.
  const double share =
      std::min(1.0, static_cast<double>(std::max(of_class.nq, of_class.nk)) / kTile);
  const double tiles = static_cast<double>(Tiles(seq.lengths.nq));
  const double key_tiles = static_cast<double>(Tiles(seq.lengths.nk));
  const auto dilation = static_cast<double>(f.dilation);
  PatternCounts counts{.pairs = DilatedPairs(seq.lengths, f) +
                                static_cast<double>(g) * static_cast<double>(seq.lengths.nq),
                       .tiles = dilation * share * WindowTiles(of_class, class_steps) + 2 * tiles};
  if (f.with_global_rows) {
    const Positions rows = RowsAt(f.globals, seq.offset, seq.lengths.nq);
    counts.pairs += GlobalPairs(seq, rows);
    counts.tiles += static_cast<double>(Tiles(static_cast<int64_t>(rows.size()))) * key_tiles;
  }
  counts.pairs = std::min(
      counts.pairs, static_cast<double>(seq.lengths.nq) * static_cast<double>(seq.lengths.nk));
  counts.tiles = std::min(counts.tiles, tiles * key_tiles);
  counts.tiles += static_cast<double>(Tiles(g)) * tiles;
  PatternSource source = is_natural ? SourceOf(seq.Nq, seq.Nk, "longformer",
                                               NaturalOrder{seq.Nq, seq.Nk, f}, counts, SpecOf)
                                    : SourceOf(seq.Nq, seq.Nk, "longformer gathered",
                                               GatheredOrder{seq.lengths, f}, counts, SpecOf);
  source.gathers = !is_natural;
  source.is_counted = false;
  source.knows_pairs = f.globals.empty();
  return source;
}

PatternSource GlobalRowsAlone(const PatternSeq& seq, std::span<const int32_t> globals) {
  const auto [nq, nk] = seq.lengths;
  const Positions rows = RowsAt(globals, seq.offset, nq);
  PatternCounts counts{.pairs = GlobalPairs(seq, rows)};
  counts.tiles = static_cast<double>(Tiles(static_cast<int64_t>(rows.size())) * Tiles(nk));
  PatternSource source = SourceOf(seq.Nq, seq.Nk, "globals",
                                  GlobalRows{rows, nk, seq.offset, seq.causal}, counts, SpecOf);
  source.gathers = true;
  return source;
}

}  // namespace

PatternSource LongformerSource(const PatternSeq& seq, const DilatedWindow& window,
                               std::span<const int32_t> globals, Half half) {
  if (half == Half::kGlobal) return GlobalRowsAlone(seq, globals);
  return WithLocalRows(seq, {.steps = {.before = window.window},
                             .dilation = window.dilation,
                             .globals = {globals.begin(), globals.end()},
                             .with_global_rows = half == Half::kBoth});
}

}  // namespace attnd
