#include "kernels/pattern/counts.h"

#include <algorithm>

#include "kernels/pattern/base/tiles.h"

namespace attnd {

PatternCounts CountsOf(const Pattern& pattern, const Lengths& lengths) {
  const bool is_whole = lengths.nq >= pattern.Nq && lengths.nk >= pattern.Nk;
  const bool is_ordered = !pattern.query_rows.empty() || !pattern.key_rows.empty();
  if (is_whole || is_ordered || pattern.is_listed()) {
    return {static_cast<double>(pattern.visible_pairs - pattern.listed_again),
            static_cast<double>(pattern.visible_tiles)};
  }
  const int64_t rows = Tiles(std::min(lengths.nq, pattern.Nq));
  const int64_t Nk = std::min(lengths.nk, pattern.Nk), columns = Tiles(Nk);
  PatternCounts counts;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t queries = std::min(kTile, std::min(lengths.nq, pattern.Nq) - row * kTile);
    for (int64_t r = pattern.by_query.begin[row]; r < pattern.by_query.begin[row + 1]; ++r) {
      const Run& run = pattern.by_query.runs[r];
      const int64_t end = std::min<int64_t>(run.first + run.count, columns);
      if (run.first >= end) break;
      counts.tiles += static_cast<double>(end - run.first);
      if (run.mask == Run::kFull) {
        counts.pairs +=
            static_cast<double>(queries * (std::min(end * kTile, Nk) - run.first * kTile));
      } else if (run.mask != Run::kComputed) {
        const TileMask& mask = pattern.masks[run.mask];
        const bool is_cut = end * kTile > Nk;
        counts.pairs += static_cast<double>((end - run.first - (is_cut ? 1 : 0)) *
                                            PairsOf(mask, queries, kTile));
        if (is_cut) counts.pairs += static_cast<double>(PairsOf(mask, queries, Nk % kTile));
      }
    }
  }
  return counts;
}

}  // namespace attnd
