// Sliding windows, dilated or not, with global tokens.
#include <iterator>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "kernels/ops/pattern_counts.h"
#include "kernels/ops/pattern_parts.h"
#include "kernels/ops/pattern_plan.h"
#include "kernels/ops/pattern_residues.h"
#include "kernels/ops/pattern_tiles.h"

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

// Natural order; a global key is one more tile of every row.
PatternPlan NaturalPlan(const PatternRow& row, const Window& window, const Positions& globals) {
  Visible seen = Or(Windows(window), Keys(globals));
  if (row.causal) seen = And(Band(PatternBuilder::kUnbounded, row.offset), seen);
  const Positions rows = RowsAt(globals, row.offset, row.Nq);
  return {.Nq = row.Nq, .Nk = row.Nk, .visible = AndNot(seen, Queries(rows))};
}

// Natural rows and keys, global keys appended.
PatternPlan AppendedPlan(const PatternRow& row, const Window& window, const Positions& globals) {
  const auto [nq, nk] = row.lengths;
  const Positions keys = Below(globals, nk);
  Visible right = Band(PatternBuilder::kUnbounded, kFar);
  if (row.causal) {
    RowOrder order(nq);
    std::iota(order.begin(), order.end(), 0);
    right = NotAfter(PositionsOf(order, row.offset), keys, 0);
  }
  PatternPlan plan{.Nq = nq, .key_rows = AppendedOrder(nk, keys)};
  plan.Nk = static_cast<int64_t>(plan.key_rows.size());
  plan.visible = AndNot(Beside(AndNot(Windows(window), Keys(keys)), Tiles(nk), right),
                        Queries(RowsAt(globals, row.offset, nq)));
  return plan;
}

// Local rows and keys in residue order, global keys appended.
PatternPlan DilatedPlan(const PatternRow& row, const Window& window, int64_t dilation,
                        const Positions& globals) {
  const auto [nq, nk] = row.lengths;
  const Positions keys = Below(globals, nk);
  const std::vector<bool> is_global = Bits(RowsAt(globals, row.offset, nq), nq);
  PatternPlan plan{.query_rows = ResidueOrder(nq, row.offset, dilation),
                   .key_rows = ResidueOrder(nk, 0, dilation)};
  std::erase_if(plan.query_rows, [&](int32_t i) { return is_global[i]; });
  const Steps steps{.lo = -window.before, .hi = row.causal ? 0 : window.after};
  const Visible near =
      AndNot(SameResidue(plan.query_rows, row.offset, plan.key_rows, nk, dilation, steps),
             Keys(SlotsOf(plan.key_rows, keys, nk)));
  plan.key_rows.resize(Tiles(nk) * kTile, -1);
  plan.key_rows.insert(plan.key_rows.end(), keys.begin(), keys.end());
  plan.Nq = static_cast<int64_t>(plan.query_rows.size());
  plan.Nk = static_cast<int64_t>(plan.key_rows.size());
  Visible right = Band(PatternBuilder::kUnbounded, kFar);
  if (row.causal) right = NotAfter(PositionsOf(plan.query_rows, row.offset), keys, 0);
  plan.visible = Beside(near, Tiles(nk), right);
  return plan;
}

int64_t TilesWith(std::span<const int32_t> slots) {
  int64_t tiles = 0, last = -1;
  for (const int32_t s : slots) {
    tiles += s / kTile != last;
    last = s / kTile;
  }
  return tiles;
}

}  // namespace

PatternSource LongformerLocal(const PatternRow& row, int64_t window, int64_t dilation,
                              std::span<const int32_t> globals) {
  dilation = std::min(dilation, kFar);
  // In steps of the dilation.
  const Window steps{.before = std::min(window, kFar),
                     .after = std::min(window, kFar),
                     .offset = row.offset,
                     .causal = row.causal};
  if (globals.empty() && dilation == 1) return WindowSource(row.Nq, row.Nk, steps, row.lengths);
  const auto g = static_cast<int64_t>(globals.size());
  const bool is_natural = dilation == 1 && TilesWith(globals) <= Tiles(g) + 1;
  // About: as if the keys of a class were a sequence of their own.
  const Lengths of_class{row.lengths.nq / dilation + 1, row.lengths.nk / dilation + 1};
  Window class_steps = Canonical(of_class.nq, of_class.nk, steps);
  class_steps.offset = 0;
  // Short classes share their tiles; a row of tiles meets a cut one at either end.
  const double share =
      std::min(1.0, static_cast<double>(std::max(of_class.nq, of_class.nk)) / kTile);
  const double rows = static_cast<double>(Tiles(row.lengths.nq));
  PatternCounts counts{.pairs = dilation * WindowPairs(of_class, class_steps) +
                                static_cast<double>(g * row.lengths.nq),
                       .tiles = dilation * share * WindowTiles(of_class, class_steps) + 2 * rows};
  counts.pairs = std::min(
      counts.pairs, static_cast<double>(row.lengths.nq) * static_cast<double>(row.lengths.nk));
  counts.tiles = std::min(counts.tiles, rows * static_cast<double>(Tiles(row.lengths.nk)));
  counts.tiles += static_cast<double>(Tiles(g)) * rows;
  std::string key = absl::StrCat("longformer ", steps.before, " ", dilation, " ", row.offset, " ",
                                 row.causal, " ", Fingerprint(globals));
  if (!is_natural) absl::StrAppend(&key, " ", row.lengths.nq, " ", row.lengths.nk);
  PatternSource source = SourceOf(
      row.Nq, row.Nk, key, counts,
      [row, steps, dilation, is_natural, list = Positions(globals.begin(), globals.end())] {
        if (dilation > 1) return DilatedPlan(row, steps, dilation, list);
        return is_natural ? NaturalPlan(row, steps, list) : AppendedPlan(row, steps, list);
      });
  source.gathers = dilation > 1 || !is_natural;
  source.is_counted = false;
  return source;
}

PatternSource LongformerGlobal(const PatternRow& row, std::span<const int32_t> globals) {
  const auto [nq, nk] = row.lengths;
  PatternCounts counts;
  const Positions rows = RowsAt(globals, row.offset, nq);
  for (const int32_t i : rows) {
    counts.pairs +=
        static_cast<double>(row.causal ? std::clamp<int64_t>(i + row.offset + 1, 0, nk) : nk);
  }
  counts.tiles = static_cast<double>(Tiles(static_cast<int64_t>(rows.size())) * Tiles(nk));
  const std::string key =
      absl::StrCat("globals ", row.offset, " ", row.causal, " ", nk, " ", Fingerprint(rows));
  PatternSource source = SourceOf(row.Nq, row.Nk, key, counts, [row, rows] {
    PatternPlan plan{
        .Nq = static_cast<int64_t>(rows.size()), .Nk = row.lengths.nk, .query_rows = rows};
    if (row.causal) {
      Coordinates c{.lo = Positions(rows.size(), 0), .hi = PositionsOf(rows, row.offset), .x = {}};
      c.x.resize(row.lengths.nk);
      for (int64_t j = 0; j < row.lengths.nk; ++j) c.x[j] = static_cast<int32_t>(j);
      plan.visible = Within(std::move(c));
    }
    return plan;
  });
  source.gathers = true;
  return source;
}

}  // namespace attnd
