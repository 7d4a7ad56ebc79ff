#include "kernels/pattern/shapes/windows.h"

#include <algorithm>
#include <utility>

#include "kernels/pattern/base/tiles.h"
#include "kernels/pattern/predicates/windows.h"

namespace attnd {

PatternSource WindowSource(int64_t Nq, int64_t Nk, const Window& window, const Lengths& lengths) {
  const Window w = Canonical(Nq, Nk, window);
  const bool shows_all = w.block == 1 && w.before == kFar && w.after == kFar;
  // If a window moves by keys, each row has two edges of two tiles, equal in all rows.
  PatternSource source = SourceOf(Nq, Nk, shows_all ? nullptr : Windows(w),
                                  {.pairs = WindowPairs(lengths, w),
                                   .tiles = WindowTiles(lengths, w),
                                   .runs_of_row = 8,
                                   .masks = w.block == 1 ? 16 : PatternCounts::kMany,
                                   .slot_bytes = 0});
  if (w.block != 1 || shows_all) return source;
  source.build = [build = std::move(source.build), band = KeyBand{w.before, w.after}] {
    Pattern pattern = build();
    pattern.band = band;
    return pattern;
  };
  return source;
}

PatternSource BandSource(int64_t Nq, int64_t Nk, int64_t lo, int64_t hi) {
  return BandSource(Nq, Nk, lo, hi, {Nq, Nk});
}

PatternSource BandSource(int64_t Nq, int64_t Nk, int64_t lo, int64_t hi, const Lengths& lengths) {
  return WindowSource(Nq, Nk, BandWindow(lo, hi), lengths);
}

PatternSource AllKeys(const PatternSeq& seq) {
  return BandSource(seq.Nq, seq.Nk, kUnbounded, seq.causal ? seq.offset : kUnbounded, seq.lengths);
}

PatternSource BlockBandSource(int64_t Nq, int64_t Nk, const BlockBand& band,
                              const Lengths& lengths) {
  return WindowSource(Nq, Nk, WindowOf(band), lengths);
}

}  // namespace attnd
