// The masks and terms of the tiles of a run, stored or computed.
#pragma once

#include "kernels/device/pattern.h"

namespace attnd {

// All ones where every pair is visible, also beyond Nq and Nk.
inline TileMask MaskOfRun(const Pattern& pattern, const Run& run, int64_t q_tile,
                          int64_t key_tile) {
  TileMask mask;
  mask.fill(~uint64_t{0});
  if (run.mask >= 0) return pattern.masks[run.mask];
  if (run.mask == Run::kFull) return mask;
  if (ComputeMask(pattern, q_tile, key_tile, &mask) == TileSight::kEverything) {
    mask.fill(~uint64_t{0});
  }
  return mask;
}

// The terms of a tile of a run; empty if they add nothing.
inline TileTerms TermsOfRun(const Pattern& pattern, const Run& run, int64_t q_tile,
                            int64_t key_tile) {
  TileTerms terms;
  if (run.terms >= 0) terms = pattern.terms[run.terms];
  if (run.terms == Run::kComputed) ComputeTerms(pattern, q_tile, key_tile, &terms);
  return terms;
}

}  // namespace attnd
