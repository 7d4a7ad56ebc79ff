// The parts that a pattern is built from, in slots.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/pattern/constants.h"
#include "kernels/pattern/predicates/predicate.h"

namespace attnd {

// As in Pattern. Slots without a row (-1) are hidden by Build, whatever `visible` says.
struct PatternSpec {
  int64_t Nq = 0, Nk = 0;                     // slots
  Visible visible;                            // of slots; null: every pair
  std::vector<int32_t> query_rows, key_rows;  // empty: natural order
  std::vector<float> key_bias;
  ConstantsPtr constants;
  // False: masks are computed where they are needed, since hardly any two are equal.
  bool stores_masks = true;
};
Pattern Build(PatternSpec plan);

}  // namespace attnd
