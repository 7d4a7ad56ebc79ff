// The keys that a query row of a pattern sees, read from the pattern's data slot by slot.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops/attend.h"

namespace attnd::testing {

// A visible key slot of a query row.
struct SeenSlot {
  int64_t row = 0;  // of k; from Nk of k on: of k2
  double bias = 0;  // constants of the pattern
  int label = -1;   // column of the table
};

// [query row] in the order of key slots. Nk: rows of k.
std::vector<std::vector<SeenSlot>> SeenSlots(const Pattern* pattern, const AttendSeq& seq,
                                             int64_t Nq);

}  // namespace attnd::testing
