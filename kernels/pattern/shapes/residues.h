// Coordinates of rows in residue order: (class, step) as one number.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/pattern/predicates/predicate.h"

namespace attnd {

// Steps between the position of a query and a key of its class that it sees: key step - query step
// in [lo, hi]. The widest: all.
struct Steps {
  static constexpr int64_t kAll = int64_t{1} << 33;
  int64_t lo = -kAll, hi = kAll;
};

// Query slot of row i: position p = i + offset, class p mod modulus, step floor(p / modulus). Keys
// likewise with j. `Nk`: rows of k. Slots without a row see nothing, or are seen by nobody.
Visible SameResidue(std::span<const int32_t> query_rows, int64_t offset,
                    std::span<const int32_t> key_rows, int64_t Nk, int64_t modulus,
                    const Steps& steps);

}  // namespace attnd
