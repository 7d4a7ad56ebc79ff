// Drawn structure: the lists of random and bigbird.
#pragma once

#include "kernels/ops/pattern_parts.h"

namespace attnd {

// Of each query i at position p = i + offset R of the valid keys and, if causal, of those with j <=
// p: [nq, R], ascending, -1 where there are fewer. A pure function of seed, head, p and the number
// of candidates.
std::vector<int32_t> DrawnKeys(const PatternRow& row, int64_t R, uint64_t seed, int64_t head);

// Of each query block t that is not global `slots` of the blocks [left, end) outside of |t - c| <=
// half_window: [blocks - left - right, slots], -1 where there are fewer.
struct BlockDraw {
  int64_t blocks = 0, left = 0, right = 0, half_window = 0, slots = 0;
  int64_t end = 0;  // at most blocks - right
  uint64_t seed = 0;
};
std::vector<int32_t> DrawnBlocks(const BlockDraw& draw, int64_t head);

}  // namespace attnd
