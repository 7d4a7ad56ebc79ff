// Drawn structure: the lists of random and bigbird.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/pattern/shapes/blocks.h"
#include "kernels/pattern/shapes/seq.h"

namespace attnd {

// Of each query i at position p = i + offset R of the valid keys and, if causal, of those with j <=
// p: [nq, R], ascending, -1 where there are fewer. A pure function of seed, head, p and the number
// of candidates.
std::vector<int32_t> DrawnKeys(const PatternSeq& seq, int64_t R, uint64_t seed, int64_t head);

// Of each query block t of N positions that is not global bird.r of the blocks that are neither
// global nor in its window, |t - c| <= half_window, and that begin before `prefix`, counted behind
// the globals: [bird.InnerRows(N), r], -1 where there are fewer.
struct BlockDraw {
  int64_t N = 0;
  int64_t prefix = INT64_MAX;
  uint64_t seed = 0;
};
std::vector<int32_t> DrawnBlocks(const BigBird& bird, const BlockDraw& draw, int64_t head);

}  // namespace attnd
