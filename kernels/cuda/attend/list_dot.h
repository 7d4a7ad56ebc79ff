// The product of a query and a key that it lists. The forward and the gradient add in one order:
// the score of a pair has the same bits in both.
#pragma once

#include <cstdint>

#include "kernels/cuda/attend/attend_params.h"
#include "kernels/cuda/attend/attend_tiles.h"
#include "kernels/cuda/simt.h"
#include "kernels/cuda/views.h"

namespace attnd::cuda {

// Eight lanes of a warp for each of four keys (-1: none): the dot product of a row of q and one of
// k, in all eight lanes. `fours`: ReadsFour of both. kAtOnce: pieces of 32 columns under way, as
// registers allow.
template <int kAtOnce>
SIMT_FN float ListDot(const HeadRows& q, int64_t row, const HeadRows& k, int64_t key, int D,
                      bool fours) {
  const int sub = threadIdx.x % 8;
  float sum = 0;
  if (key >= 0 && fours) {
#pragma unroll kAtOnce
    for (int d = sub * 4; d < D; d += 32) {
      float x[4], y[4];
      LoadFour(q, q.At(row) + d, x);
      LoadFour(k, k.At(key) + d, y);
#pragma unroll
      for (int i = 0; i < 4; ++i) sum = fmaf(x[i], y[i], sum);
    }
  } else if (key >= 0) {
    const int64_t q_at = q.At(row), k_at = k.At(key);
#pragma unroll 1
    for (int d = sub * 4; d < D; d += d % 4 == 3 ? 29 : 1) {
      sum = fmaf(LoadFloat(q.data, q.dtype, q_at + d), LoadFloat(k.data, k.dtype, k_at + d), sum);
    }
  }
  for (int flip = 1; flip < 8; flip *= 2) sum += __shfl_xor_sync(simt::kAllLanes, sum, flip);
  return sum;
}

}  // namespace attnd::cuda
