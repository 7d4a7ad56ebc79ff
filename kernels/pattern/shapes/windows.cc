// Windows before they are built.
#include "kernels/pattern/shapes/windows.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/pattern/builder.h"
#include "kernels/pattern/predicates/windows.h"
#include "kernels/pattern/tiles.h"

namespace attnd {
namespace {

constexpr int64_t kUnbounded = PatternBuilder::kUnbounded;

}  // namespace

PatternSource WindowSource(int64_t Nq, int64_t Nk, const Window& window, const Lengths& lengths) {
  const Window w = Canonical(Nq, Nk, window);
  const bool shows_all = w.block == 1 && w.before == kFar && w.after == kFar;
  // Windows that move by keys have two edges of two tiles each, all rows alike.
  return SourceOf(Nq, Nk, shows_all ? nullptr : Windows(w),
                  {.pairs = WindowPairs(lengths, w),
                   .tiles = WindowTiles(lengths, w),
                   .runs_of_row = 8,
                   .masks = w.block == 1 ? 16 : PatternCounts::kMany,
                   .slot_bytes = 0});
}

PatternSource BandSource(int64_t Nq, int64_t Nk, int64_t lo, int64_t hi) {
  return BandSource(Nq, Nk, lo, hi, {Nq, Nk});
}

PatternSource BandSource(int64_t Nq, int64_t Nk, int64_t lo, int64_t hi, const Lengths& lengths) {
  return WindowSource(Nq, Nk, BandWindow(lo, hi), lengths);
}

PatternSource AllKeys(const PatternSeq& row) {
  return BandSource(row.Nq, row.Nk, kUnbounded, row.causal ? row.offset : kUnbounded, row.lengths);
}

PatternSource BlockBandSource(int64_t Nq, int64_t Nk, const BlockBand& band,
                              const Lengths& lengths) {
  return WindowSource(Nq, Nk, WindowOf(band), lengths);
}

PatternSource PackedSource(std::span<const int32_t> cu_q, std::span<const int32_t> cu_k,
                           const Window& window) {
  PatternCounts counts;
  for (size_t s = 0; s + 1 < cu_q.size(); ++s) {
    const Lengths n{cu_q[s + 1] - cu_q[s], cu_k[s + 1] - cu_k[s]};
    Window w = window;
    w.offset += n.nk - n.nq;
    w = Canonical(n.nq, n.nk, w);
    counts.pairs += WindowPairs(n, w);
    // Segments do not begin at tile borders: a row of tiles meets half a tile more on either side;
    // short segments share their tiles.
    const double share = std::min(1.0, static_cast<double>(std::max(n.nq, n.nk)) / kTile);
    counts.tiles += share * WindowTiles(n, w) + static_cast<double>(n.nq + n.nk) / (2 * kTile);
  }
  return SourceOf(cu_q.back(), cu_k.back(), PackedWindows(cu_q, cu_k, window), counts);
}

}  // namespace attnd
