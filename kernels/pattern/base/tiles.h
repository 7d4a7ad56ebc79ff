// Arithmetic of tiles and positions.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/core/integer.h"
#include "kernels/device/pattern.h"

namespace attnd {

// Larger than any length or offset; sums of a few of it fit into int64, products into double.
constexpr int64_t kFar = int64_t{1} << 33;

inline int64_t Tiles(int64_t n) { return CeilDiv(n, kTile); }

// Of FloorDiv.
inline int64_t Remainder(int64_t a, int64_t b) { return a - FloorDiv(a, b) * b; }

// Bits [from, to), clipped to [0, 64).
inline uint64_t BitsBetween(int64_t from, int64_t to) {
  from = std::clamp<int64_t>(from, 0, kTile);
  return LowBits(std::clamp<int64_t>(to, from, kTile)) & ~LowBits(from);
}

// Visible pairs of the first `queries` and `keys` of a tile.
inline int64_t PairsOf(const TileMask& mask, int64_t queries, int64_t keys) {
  int64_t pairs = 0;
  for (int64_t k = 0; k < keys; ++k) pairs += std::popcount(mask[k] & LowBits(queries));
  return pairs;
}

}  // namespace attnd
