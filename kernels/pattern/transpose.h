// Rows of runs seen from the other side.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device/pattern.h"

namespace attnd {

// Appends to the row that starts at `begin`; side by side with equal mask and terms, runs become
// one.
void AppendRun(const Run& run, int64_t begin, std::vector<Run>* runs);

// Whether `next` begins where `run` ends, and looks the same.
inline bool Continues(const Run& run, const Run& next) {
  return run.mask == next.mask && run.terms == next.terms && run.first + run.count == next.first;
}

// Runs of query tiles for each key tile, in time proportional to the runs of both directions.
// No rows if there would be more than `most` runs.
TileRows Transposed(const TileRows& by_query, int64_t key_tiles, int64_t most);

}  // namespace attnd
