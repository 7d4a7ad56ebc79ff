#include "kernels/device/pattern.h"

#include <algorithm>

#include "kernels/device/device_copies.h"

namespace attnd {

TileSight ComputeMask(const Pattern& pattern, int64_t q_tile, int64_t key_tile, TileMask* mask) {
  const int64_t keys = std::min(kTile, pattern.Nk - key_tile * kTile);
  const uint64_t queries = LowBits(std::min(kTile, pattern.Nq - q_tile * kTile));
  mask->fill(0);
  std::fill_n(mask->begin(), keys, queries);
  pattern.computed_masks->Keep(q_tile, key_tile, mask);
  uint64_t any = 0, all = queries;
  for (int64_t k = 0; k < kTile; ++k) any |= (*mask)[k];
  for (int64_t k = 0; k < keys; ++k) all &= (*mask)[k];
  if (any == 0) return TileSight::kNothing;
  return all == queries ? TileSight::kEverything : TileSight::kSome;
}

void ComputeTerms(const Pattern& pattern, int64_t q_tile, int64_t key_tile, TileTerms* terms) {
  terms->bias.clear();
  terms->labels.clear();
  pattern.computed_terms->Fill(q_tile, key_tile, terms);
}

DeviceCopiesOfOne::DeviceCopiesOfOne() : copies_(std::make_shared<DeviceCopies>()) {}

}  // namespace attnd
