// Predicates by coordinates of slots, in memory O(Nq + Nk).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/pattern/predicates/predicate.h"

namespace attnd {

// lo[q] <= x[k] <= hi[q]: segments, buckets, lengths, positions, grid rows and columns. A query
// with lo > hi sees nothing.
struct Coordinates {
  std::vector<int32_t> lo, hi;  // of query slots
  std::vector<int32_t> x;       // of key slots
};
Visible Within(Coordinates coordinates);

// Pairs with equal ids >= 0.
Visible SameSegment(std::span<const int32_t> ids_q, std::span<const int32_t> ids_k);
// Pairs with k_position <= q_position + offset: causality after a permutation.
Visible NotAfter(std::span<const int32_t> q_positions, std::span<const int32_t> k_positions,
                 int64_t offset);

}  // namespace attnd
