// Runs of key tiles by query tile, turned into runs of query tiles by key tile.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device/pattern.h"

namespace attnd {

// Appends a run to the row that starts at `begin`, joining it with the last run if it continues
// that one.
void AppendRun(const Run& run, int64_t begin, std::vector<Run>* runs);

// Whether `next` begins where `run` ends, with the same mask and terms.
inline bool Continues(const Run& run, const Run& next) {
  return run.mask == next.mask && run.terms == next.terms && run.first + run.count == next.first;
}

// Runs of query tiles for each key tile, in time proportional to the runs of both directions.
// Returns no rows if there would be more than `most` runs.
TileRows Transposed(const TileRows& by_query, int64_t key_tiles, int64_t most);

}  // namespace attnd
