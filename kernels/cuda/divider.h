// Division by a number that the host knows, in kernels: a product and a shift.
#pragma once

#include <cstdint>

#include "kernels/cuda/simt.h"

namespace attnd::cuda {

// Of 0 <= n < 2^31 by 1 <= d < 2^31 (Granlund and Montgomery 1994).
struct Divider {
  uint32_t divisor = 1, factor = 0, shift = 0;

  Divider() = default;
  explicit Divider(int64_t d) : divisor(static_cast<uint32_t>(d)) {
    while ((uint64_t{1} << shift) < divisor) ++shift;
    const uint64_t rest = (uint64_t{1} << shift) - divisor;
    factor = static_cast<uint32_t>((rest << 32) / divisor + 1);
  }
  SIMT_FN uint32_t Quotient(uint32_t n) const { return (__umulhi(n, factor) + n) >> shift; }
};

}  // namespace attnd::cuda
