// Coordinates of rows in residue order: (class, step) as one number.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/pattern/predicates/predicate.h"

namespace attnd {

// Visible distances in steps: key step - query step in [lo, hi]. The defaults show all.
struct Steps {
  static constexpr int64_t kAll = int64_t{1} << 33;
  int64_t lo = -kAll, hi = kAll;
};

// Pairs of the same class within `steps`. The query slot of row i has position p = i + offset,
// class p mod modulus and step floor(p / modulus); the key slot of row j has p = j. `Nk`: rows of
// k. Slots without a row are in no pair.
Visible SameResidue(std::span<const int32_t> query_rows, int64_t offset,
                    std::span<const int32_t> key_rows, int64_t Nk, int64_t modulus,
                    const Steps& steps);

}  // namespace attnd
