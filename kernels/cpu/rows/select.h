// The lowest numbers of a row, without sorting it.
#pragma once

#include <cstdint>

#include "kernels/cpu/simd/targets.h"

namespace attnd {

// Keys as whole numbers that order like them: the first key of an order has the lowest rank. NaN
// has the highest, equal keys (0 and -0, too) have equal ranks.
int32_t RankOf(float key, bool descending);
int32_t RankOf(int32_t key, bool descending);
// The ranks of n float32 keys that lie side by side.
void RanksOf(Isa isa, const float* keys, int64_t n, bool descending, int32_t* ranks);

// Writes the indices of the M lowest of N ranks, ties to the lowest index, in ascending order;
// 0 <= M <= N. `of_floats`: the ranks are those of float keys, which makes it faster. Some passes
// over the ranks. A stopped run (CheckPoint) writes any indices in range.
struct Selection {
  const int32_t* ranks = nullptr;
  int64_t N = 0, M = 0;
  bool of_floats = false;
  int32_t* order = nullptr;    // [M]
  int32_t* scratch = nullptr;  // [SelectionScratch(M)]
};
constexpr int64_t kSelectionFew = 128;  // ranks that are compared, see select.cc
constexpr int64_t SelectionScratch(int64_t M) { return M + kSelectionFew + 16; }
void SelectLowest(Isa isa, const Selection& selection);

}  // namespace attnd
