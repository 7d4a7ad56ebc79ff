// Products of numbers of 16 bits that lie in tiles of float32: as those of tiles of 16 bits.
#pragma once

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/cuda/attend/attend_tiles.h"
#include "kernels/cuda/simt.h"

namespace attnd::cuda {

// s += own other^T over `width` columns, a multiple of 16: of the 16 rows of a warp (`own`: the
// first of them) with 64 rows. s: of the layout of AddProducts, whose bits it has.
template <class T>
SIMT_FN void AddNarrowProducts(T, float (&s)[8][4], const float* own, const float* other,
                               int stride, int width) {
  const int group = threadIdx.x % 32 / 4, t = threadIdx.x % 4 * 2;
  const auto pair_at = [&](const float* row, int c) { return PackPair(T{}, row[c], row[c + 1]); };
#pragma unroll 1
  for (int c = t; c < width; c += 16) {
    uint32_t a[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i] = pair_at(own + (group + (i & 1) * 8) * stride, c + (i >> 1) * 8);
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float* row = other + (n * 8 + group) * stride;
      simt::Mma(T{}, s[n], a, pair_at(row, c), pair_at(row, c + 8));
    }
  }
}
// REQUIRES: `type` is one of 16 bits.
SIMT_FN void AddNarrowProducts(DType type, float (&s)[8][4], const float* own, const float* other,
                               int stride, int width) {
  if (type == DType::kF16) {
    AddNarrowProducts(simt::f16{}, s, own, other, stride, width);
  } else {
    AddNarrowProducts(simt::bf16{}, s, own, other, stride, width);
  }
}

}  // namespace attnd::cuda
