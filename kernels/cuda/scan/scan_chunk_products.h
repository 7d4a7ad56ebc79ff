// Products of scan's chunks: float32 on tensor cores, several columns of tiles in turn.
#pragma once

#include "kernels/cuda/attend/split_product.h"

namespace attnd::cuda {

// A fragment of 16 x 8 elements of the left side, split.
struct SplitRows {
  uint32_t high[4], low[4];

  SIMT_FN void Set(int i, float x) { simt::SplitTf32(x, &high[i], &low[i]); }
};

SIMT_FN void Clear(float (&x)[8][4]) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[n][i] = 0;
  }
}

// d[n] += a b_n of tiles n in [kFirst, kFirst + 4).
template <int kFirst, bool kWhole = false, class B>
SIMT_FN void AddFour(float (&d)[8][4], const SplitRows& a, const B& b) {
  MmaSplitTiles<4, false, kWhole>(&d[kFirst], a.high, a.low,
                                  [&](int n, int i) { return b(kFirst + n, i); });
}
template <class B>
SIMT_FN void AddEight(float (&d)[8][4], const SplitRows& a, const B& b) {
  AddFour<0>(d, a, b);
  AddFour<4>(d, a, b);
}

}  // namespace attnd::cuda
