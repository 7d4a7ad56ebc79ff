// Arithmetic that pattern files share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/pattern/predicates/predicate.h"

namespace attnd {

// Longer than any sequence or offset; sums and products of two of it stay within int64 and doubles.
constexpr int64_t kFar = int64_t{1} << 33;

inline int64_t Tiles(int64_t n) { return (n + kTile - 1) / kTile; }

// Division that rounds down, for any a. REQUIRES: b > 0.
inline int64_t FloorDiv(int64_t a, int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }
inline int64_t Remainder(int64_t a, int64_t b) { return a - FloorDiv(a, b) * b; }

// Bits [from, to) of those that a word has.
inline uint64_t BitsBetween(int64_t from, int64_t to) {
  from = std::clamp<int64_t>(from, 0, kTile);
  return LowBits(std::clamp<int64_t>(to, from, kTile)) & ~LowBits(from);
}

// Appends [first, last); side by side with an equal verdict, spans become one. REQUIRES: no span
// ends beyond `first`.
inline void Emit(int64_t first, int64_t last, bool full, std::vector<TileSpan>* spans) {
  if (first >= last) return;
  if (!spans->empty() && spans->back().last == first && spans->back().full == full) {
    spans->back().last = last;
  } else {
    spans->push_back({first, last, full});
  }
}

}  // namespace attnd
