// Rows of runs seen from the other side.
#pragma once

#include "kernels/ops/pattern.h"

namespace attnd {

// Appends to the row that starts at `begin`; side by side with equal mask and terms, runs become
// one.
void AppendRun(const Run& run, int64_t begin, std::vector<Run>* runs);

// Runs of query tiles for each key tile, in time proportional to the runs of both directions.
TileRows Transposed(const TileRows& by_query, int64_t key_tiles);

}  // namespace attnd
