#include "kernels/pattern/shapes/sorted_blocks.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/pattern/base/tiles.h"
#include "kernels/pattern/orders.h"
#include "kernels/pattern/predicates/sets.h"
#include "kernels/pattern/predicates/windows.h"

namespace attnd {
namespace {

Window OwnBlock(const SortedBlocks& of) { return {.block = of.bq, .causal = of.causal}; }

// Null: no pair.
Visible SortedPairs(const SortedBlocks& of) {
  if (of.keys == 0) return nullptr;
  return BlockDiagonal({.bq = of.group, .bk = of.width, .lo = -of.first, .hi = 1 - of.first});
}
Visible LocalPairs(const SortedBlocks& of) {
  if (of.causal) return Windows(OwnBlock(of));
  return BlockDiagonal({.bq = of.bq, .bk = of.bk});
}

// Counts of `pairs` where every `group` of queries sees `width` keys of its own.
PatternCounts CountsOf(double pairs, int64_t nq, int64_t group, int64_t width) {
  const bool is_even = group % kTile == 0 || kTile % group == 0;
  const int64_t groups = is_even ? CeilDiv(kTile, group) : CeilDiv(kTile, group) + 1;
  const double span = static_cast<double>(groups) * static_cast<double>(width);
  const bool is_aligned = is_even && groups * (width % kTile) % kTile == 0;
  const double of_row = span / kTile + (is_aligned ? 0 : 2);
  PatternCounts counts{
      .pairs = pairs, .tiles = static_cast<double>(Tiles(nq)) * of_row, .slot_bytes = 0};
  // Whole blocks fill their tiles; smaller ones have a mask for each way that they lie in a tile.
  if (is_aligned && group % kTile == 0) counts.runs_of_row = counts.masks = 8;
  return counts;
}

constexpr PatternCounts kNoPairs = {.runs_of_row = 0, .masks = 0, .slot_bytes = 0};

PatternCounts SortedCounts(const SortedBlocks& of) {
  if (of.keys == 0) return kNoPairs;
  const int64_t unseen = std::min(of.first * of.group, of.lengths.nq);
  const auto rows = static_cast<double>(of.lengths.nq - unseen);
  return CountsOf(rows * static_cast<double>(of.width), of.lengths.nq, of.group, of.width);
}

PatternCounts LocalCounts(const SortedBlocks& of) {
  const auto& [nq, nk] = of.lengths;
  if (!of.has_local || nq == 0 || nk == 0) return kNoPairs;
  // Whole blocks, and the last one that has both queries and keys.
  const int64_t last = std::min(CeilDiv(nq, of.bq), CeilDiv(nk, of.bk)) - 1;
  const auto rest = static_cast<double>(std::min(nq - last * of.bq, of.bq)) *
                    static_cast<double>(std::min(nk - last * of.bk, of.bk));
  const double pairs =
      static_cast<double>(last) * static_cast<double>(of.bq) * static_cast<double>(of.bk) + rest;
  return CountsOf(of.causal ? WindowPairs(of.lengths, OwnBlock(of)) : pairs, nq, of.bq, of.bk);
}

// The larger limits of both.
PatternCounts Sum(const PatternCounts& a, const PatternCounts& b) {
  PatternCounts sum{.pairs = a.pairs + b.pairs, .tiles = a.tiles + b.tiles, .slot_bytes = 16};
  if (a.runs_of_row != PatternCounts::kMany && b.runs_of_row != PatternCounts::kMany) {
    sum.runs_of_row = a.runs_of_row + b.runs_of_row;
    sum.masks = a.masks + b.masks;
  }
  return sum;
}

PatternSpec SpecOf(const SortedBlocks& of) {
  PatternSpec spec{.Nq = of.lengths.nq};
  std::vector<int32_t> rows(static_cast<size_t>(of.has_local ? of.lengths.nk : 0));
  std::iota(rows.begin(), rows.end(), static_cast<int32_t>(of.keys));
  spec.key_rows = AppendedOrder(of.keys, rows);
  spec.Nk = static_cast<int64_t>(spec.key_rows.size());
  const Visible sorted = SortedPairs(of);
  if (!of.has_local) {
    spec.visible = sorted;
  } else {
    spec.visible =
        sorted == nullptr ? LocalPairs(of) : Beside(sorted, Tiles(of.keys), LocalPairs(of));
  }
  return spec;
}

}  // namespace

PatternSource SortedAndLocal(const SortedBlocks& of) {
  const PatternCounts counts = Sum(SortedCounts(of), LocalCounts(of));
  PatternSource source = SourceOf(of.lengths.nq, of.keys, "sorted", of, counts, SpecOf);
  source.host = CostOf(of.lengths.nq, Tiles(of.keys) * kTile + of.lengths.nk, counts);
  source.gathers = true;
  return source;
}

PatternSource SortedAlone(const SortedBlocks& of) {
  return SourceOf(of.lengths.nq, of.keys, SortedPairs(of), SortedCounts(of));
}

}  // namespace attnd
