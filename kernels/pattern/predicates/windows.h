// Predicates by distance, in constant memory.
#pragma once

#include <cstdint>

#include "kernels/pattern/base/window.h"
#include "kernels/pattern/predicates/predicate.h"

namespace attnd {

// Pairs with lo <= k - q <= hi; kUnbounded: no limit.
Visible Band(int64_t lo, int64_t hi);

// The pairs of Window.
Visible Windows(const Window& window);

// Query block u = floor((q + offset) / bq) sees the keys of the blocks [u + lo, u + hi), each bk
// long: blocks of one sequence beside those of another. lo = -kAll: from the first one on.
struct BlockSteps {
  static constexpr int64_t kAll = int64_t{1} << 33;
  int64_t bq = 1, bk = 1;
  int64_t lo = 0, hi = 1;
  int64_t offset = 0;
};
Visible BlockDiagonal(const BlockSteps& steps);

}  // namespace attnd
