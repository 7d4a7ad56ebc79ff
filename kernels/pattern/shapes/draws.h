// Random keys and blocks, drawn from a seed: the lists of random and bigbird.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/pattern/shapes/blocks.h"
#include "kernels/pattern/shapes/seq.h"

namespace attnd {

// Draws R keys for each query i from the valid keys j and, if causal, from those with j <= p = i +
// offset: [nq, R], ascending, -1 where there are fewer. The draw of a query depends on seed, head,
// p and the number of candidates alone.
std::vector<int32_t> DrawnKeys(const PatternSeq& seq, int64_t R, uint64_t seed, int64_t head);

// Draws bird.r blocks for each query block t that is not global, from the blocks c of N positions
// that are not global, lie outside its window, |t - c| > half_window, and begin before `prefix`,
// counted behind the globals: [bird.InnerRows(N), r], -1 where there are fewer.
struct BlockDraw {
  int64_t N = 0;
  int64_t prefix = INT64_MAX;
  uint64_t seed = 0;
};
std::vector<int32_t> DrawnBlocks(const BigBird& bird, const BlockDraw& draw, int64_t head);

}  // namespace attnd
