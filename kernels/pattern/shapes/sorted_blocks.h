// Blocks of sorted keys, beside the keys of each query's own block.
#pragma once

#include <cstdint>

#include "kernels/pattern/base/window.h"
#include "kernels/pattern/source.h"

namespace attnd {

// Tay et al. 2020 (arXiv 2002.11296), section 3: the queries [u group, (u + 1) group) see the
// sorted keys [(u - first) width, (u - first + 1) width) of `keys`, and those of
// [u' bk, (u' + 1) bk) with u' their block of bq; of the latter, if causal, those with j <= i.
struct SortedBlocks {
  Lengths lengths;  // queries, and keys of blocks
  int64_t keys = 0;
  int64_t group = 1, width = 0;
  int64_t first = 0;
  int64_t bq = 1, bk = 1;
  bool has_local = false, causal = false;
};

// Rows of k are the sorted keys, those of k2 the keys of blocks.
PatternSource SortedAndLocal(const SortedBlocks& blocks);
// Rows of k are the sorted keys, and there are no others.
PatternSource SortedAlone(const SortedBlocks& blocks);

}  // namespace attnd
