// Predicates by membership: sets of keys or queries, blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/pattern/predicates/predicate.h"

namespace attnd {

// Keys (queries) whose slot is in the set, given in any order, repeats and negative ones ignored.
Visible Keys(std::span<const int32_t> slots);
Visible Queries(std::span<const int32_t> slots);

// Blocks of bq x bk slots: row t of blocks, the queries [offset_q + t bq, ..), sees the key blocks
// of its runs, ascending and disjoint; block c holds the keys [offset_k + c bk, ..).
struct BlockRun {
  int32_t first = 0, count = 0;
  int32_t times = 1;  // how often each block is listed; Multiplicities adds its logarithm to scores
};
struct BlockRows {
  int64_t bq = kTile, bk = kTile;  // >= 1
  int64_t offset_q = 0, offset_k = 0;
  std::vector<int64_t> begin;  // row t: runs [begin[t], begin[t + 1]); {0}: no rows
  std::vector<BlockRun> runs;

  int64_t bytes() const {
    return static_cast<int64_t>(begin.capacity() * sizeof(int64_t) +
                                runs.capacity() * sizeof(BlockRun));
  }
  // Appends a run to the last row. REQUIRES: it begins at the end of the run before, or later.
  void Append(const BlockRun& run);
  void EndRow() { begin.push_back(static_cast<int64_t>(runs.size())); }
};
using BlockRowsPtr = std::shared_ptr<const BlockRows>;
Visible Blocks(BlockRowsPtr rows);
inline Visible Blocks(BlockRows rows) {
  return Blocks(std::make_shared<const BlockRows>(std::move(rows)));
}
// layout[t nbk + c] != 0: row t of blocks sees block c.
BlockRows BlocksOfLayout(std::span<const int32_t> layout, int64_t nbk, int64_t bq, int64_t bk);
// Row t's list of blocks is indices[indptr[t], indptr[t + 1]), any order; `times` counts repeats.
BlockRows BlocksOfLists(std::span<const int32_t> indptr, std::span<const int32_t> indices,
                        int64_t bq, int64_t bk);

}  // namespace attnd
