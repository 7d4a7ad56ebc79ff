// What patterns cost on the host, known before they are built.
#pragma once

#include <cstdint>

namespace attnd {

struct PatternCounts {
  double pairs = 0, tiles = 0;
  // The most that the pattern stores; kMany: as much as StoredLimits allows.
  static constexpr int64_t kMany = INT64_MAX;
  int64_t runs_of_row = kMany, masks = kMany;
  // Memory of the source and its predicates (ids, orders, coordinates) for each query and key.
  int64_t slot_bytes = 64;
  // Of an element of a tile of terms: labels 2, constants 4. 0: it adds none.
  int64_t term_bytes = 0;
};
// Bytes and seconds of building and keeping a pattern of Nq x Nk slots with these counts.
struct HostCost {
  int64_t bytes = 0;
  double seconds = 0;
};
HostCost CostOf(int64_t Nq, int64_t Nk, const PatternCounts& counts);

}  // namespace attnd
