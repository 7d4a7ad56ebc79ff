// Products of float32 on tensor cores, as three of TF32.
#pragma once

#include <cstdint>

#include "kernels/cuda/simt.h"

namespace attnd::cuda {

// What TF32 leaves out of x.
SIMT_FN uint32_t BitsBehindTf32(uint32_t x) {
  return __float_as_uint(__uint_as_float(x) - __uint_as_float(x & 0xffffe000u));
}

// d += a b of float32, a and b split, in the layout of simt::MmaTf32. Tensor cores cut sums off
// where float32 rounds them: they sum eight products, and sums of those are float32's. kSwapped:
// the small products in the order of the transposed product, b^T a^T, so that it has the same bits.
// kWhole: with the last bits of b, for which two parts have no place: where one weight is 1 and all
// others are 0, the result is b.
template <bool kSwapped = false, bool kWhole = false>
SIMT_FN void MmaSplit(float (&d)[4], const uint32_t (&a_high)[4], const uint32_t (&a_low)[4],
                      float b0, float b1) {
  uint32_t high[2], low[2];
  simt::SplitTf32(b0, &high[0], &low[0]);
  simt::SplitTf32(b1, &high[1], &low[1]);
  float sum[4] = {0, 0, 0, 0};
  if constexpr (kWhole) {
    simt::MmaTf32(sum, a_high, BitsBehindTf32(low[0]), BitsBehindTf32(low[1]));
  }
  if constexpr (kSwapped) {
    simt::MmaTf32(sum, a_high, low[0], low[1]);
    simt::MmaTf32(sum, a_low, high[0], high[1]);
  } else {
    simt::MmaTf32(sum, a_low, high[0], high[1]);
    simt::MmaTf32(sum, a_high, low[0], low[1]);
  }
  simt::MmaTf32(sum, a_high, high[0], high[1]);
#pragma unroll
  for (int i = 0; i < 4; ++i) d[i] += sum[i];
}

}  // namespace attnd::cuda
