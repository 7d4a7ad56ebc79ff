// What patterns take on the host, before they are built.
#pragma once

#include <cstdint>

namespace attnd {

struct PatternCounts {
  double pairs = 0, tiles = 0;
  // What the pattern keeps, at most; kMany: as StoredLimits allows.
  static constexpr int64_t kMany = INT64_MAX;
  int64_t runs_of_row = kMany, masks = kMany;
  // Of the source and of its predicates, for each query and key: ids, orders, coordinates.
  int64_t slot_bytes = 64;
};
// Bytes and seconds of building and keeping a pattern of Nq x Nk slots with these counts.
struct HostCost {
  int64_t bytes = 0;
  double seconds = 0;
};
HostCost CostOf(int64_t Nq, int64_t Nk, const PatternCounts& counts);

// Bytes that a pattern of Nq x Nk slots keeps of terms, at most; `bytes`: of an element of a tile.
int64_t TermBytes(int64_t Nq, int64_t Nk, int64_t bytes);

}  // namespace attnd
