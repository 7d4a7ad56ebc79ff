// Numbers of 16 bits that are not finite, eight at a time.
#pragma once

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/cuda/simt.h"

namespace attnd::cuda {

// The exponent of those that are not finite. REQUIRES: a type of 16 bits.
SIMT_FN uint32_t ExponentOfInfinity(DType dtype) { return dtype == DType::kF16 ? 0x7c00 : 0x7f80; }

// Of two numbers: whether one has this exponent.
SIMT_FN bool IsNotFinite(uint32_t two, uint32_t exponent) {
  return (two & exponent) == exponent || (two >> 16 & exponent) == exponent;
}
SIMT_FN bool IsNotFinite(const uint4& x, uint32_t exponent) {
  return IsNotFinite(x.x, exponent) || IsNotFinite(x.y, exponent) || IsNotFinite(x.z, exponent) ||
         IsNotFinite(x.w, exponent);
}

}  // namespace attnd::cuda
