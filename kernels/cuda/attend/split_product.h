// Products of float32 on tensor cores, as three of TF32.
#pragma once

#include <cstdint>

#include "kernels/cuda/simt.h"

namespace attnd::cuda {

// What TF32 leaves out of x.
SIMT_FN uint32_t BitsBehindTf32(uint32_t x) {
  return __float_as_uint(__uint_as_float(x) - __uint_as_float(x & 0xffffe000u));
}

// d[n] += a b_n of float32 for kCount tiles b_n, a split, in the layout of simt::MmaTf32: b(n, i)
// is element i of a lane's b_n. Tensor cores cut sums off where float32 rounds them: they sum eight
// products, and sums of those are float32's. The products of several tiles take turns, since those
// of one tile wait for each other. kSwapped: the small products in the order of the transposed
// product, b^T a^T, so that it has the same bits. kWhole: with the last bits of b, for which two
// parts have no place: where one weight is 1 and all others are 0, the result is b.
template <int kCount, bool kSwapped = false, bool kWhole = false, class B>
SIMT_FN void MmaSplitTiles(float (*d)[4], const uint32_t (&a_high)[4], const uint32_t (&a_low)[4],
                           const B& b) {
  uint32_t high[kCount][2], low[kCount][2];
  float sum[kCount][4];
#pragma unroll
  for (int n = 0; n < kCount; ++n) {
    simt::SplitTf32(b(n, 0), &high[n][0], &low[n][0]);
    simt::SplitTf32(b(n, 1), &high[n][1], &low[n][1]);
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[n][i] = 0;
  }
  if constexpr (kWhole) {
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      simt::MmaTf32(sum[n], a_high, BitsBehindTf32(low[n][0]), BitsBehindTf32(low[n][1]));
    }
  }
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const bool is_low = (part == 0) != kSwapped;  // of a
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      if (is_low) {
        simt::MmaTf32(sum[n], a_low, high[n][0], high[n][1]);
      } else {
        simt::MmaTf32(sum[n], a_high, low[n][0], low[n][1]);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kCount; ++n) simt::MmaTf32(sum[n], a_high, high[n][0], high[n][1]);
#pragma unroll
  for (int n = 0; n < kCount; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) d[n][i] += sum[n][i];
  }
}

// Of one tile.
template <bool kSwapped = false, bool kWhole = false>
SIMT_FN void MmaSplit(float (&d)[4], const uint32_t (&a_high)[4], const uint32_t (&a_low)[4],
                      float b0, float b1) {
  MmaSplitTiles<1, kSwapped, kWhole>(&d, a_high, a_low,
                                     [&](int, int i) { return i == 0 ? b0 : b1; });
}

}  // namespace attnd::cuda
