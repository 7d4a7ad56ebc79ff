// One round of LSH attention: chunks of the bucket order.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/pattern/shapes/seq.h"

namespace attnd {

// Kitaev et al. 2020, "LSH attention", one round of several. The keys of a chunk are its own and
// those of `before` chunks before it and `after` chunks behind it, without the token itself.
struct ReformerRounds {
  int64_t rounds = 1, n = 0;     // n rows are sorted, the rest see nothing
  std::vector<int32_t> order;    // [rounds, n]: rows by (bucket, position)
  std::vector<int32_t> buckets;  // [rounds, n], by row; read unless `across`
  int64_t chunk = 1, before = 1, after = 0;
  bool flat = true;  // the chunk before the first is the last of the round before; else of its own
  bool causal = false;
  bool across = true;  // sees other buckets and rounds
  bool unique = true;  // hides keys that other slots or earlier rounds show
};
PatternSource ReformerRound(int64_t N, ReformerRounds rounds, int64_t round);

}  // namespace attnd
