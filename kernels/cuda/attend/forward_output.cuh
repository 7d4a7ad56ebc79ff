// What a block of the forward kernel does with its sums, and with values that are not finite.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attend/forward_block.cuh"
#include "kernels/cuda/views.h"

namespace attnd::cuda {

template <class T, int kWidth, bool kStreams, bool kTerms>
SIMT_FN void ForwardBlock<T, kWidth, kStreams, kTerms>::FindOddRows(T* values) const {
  const int r = threadIdx.x / 2;
  bool is_odd = false;
  for (int c = threadIdx.x % 2; c < ValueWidth(); c += 2) {
    T& value = values[r * Shape::kValueStride + c];
    if (IsFinite(ToFloat(value))) continue;
    is_odd = true;
    value = FromFloat<T>(0);
  }
  const unsigned votes = __ballot_sync(simt::kAllLanes, is_odd);
  if (lane_ == 0) tiles_.odd_rows[threadIdx.x / 32] = votes;
  __syncthreads();
}

template <class T, int kWidth, bool kStreams, bool kTerms>
SIMT_FN void ForwardBlock<T, kWidth, kStreams, kTerms>::AddOddRows() {
  // Rare: no register holds them until here. With terms AddTerms hides more.
  if constexpr (!kTerms) HideByMask();
#pragma unroll 1
  for (int key = 0; key < 64; ++key) {
    if ((tiles_.odd_rows[key / 16] >> (key % 16 * 2) & 3) == 0) continue;
    const int64_t row = c_.head.KeyRow(int64_t{key_tile_} * kTile + key);
    const int owner = (lane_ & ~3) + key % 8 / 2;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int e = key / 8 * 4 + r * 2 + key % 2;
      const float weight = __shfl_sync(simt::kAllLanes, Pick(e), owner);
      const bool hides = __shfl_sync(simt::kAllLanes, hidden_ >> e & 1, owner) != 0;
      if (hides || row < 0) continue;
      const bool is_own = row < p_.Nk;
      const HeadRows values = HeadRows::Of(is_own ? p_.v : p_.v2, c_.head.b, c_.head.kv);
      const int64_t at = values.At(is_own ? row : row - p_.Nk) + ValueColumn();
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int c = n * 8 + lane_ % 4 * 2 + i;
          if (c >= ValueWidth()) continue;
          const float value = LoadFloat(values.data, values.dtype, at + c);
          if (!IsFinite(value)) Out(r, n, i) = fmaf(weight, value, Out(r, n, i));
        }
      }
    }
  }
}

template <class T, int kWidth, bool kStreams, bool kTerms>
SIMT_FN void ForwardBlock<T, kWidth, kStreams, kTerms>::Save() const {
  float* state = c_.tile.State(data_, c_.place);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = QuadSum(sum_[r]);
    const int i = RowOfTile(r);
    if (i >= data_.state_rows) continue;
    if (lane_ % 4 == 0 && c_.place.value_part == 0) {
      state[i] = max_[r];
      state[data_.state_rows + i] = sum;
    }
    float* values = state + 2 * data_.state_rows + int64_t{i} * p_.Dv + ValueColumn();
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int c = n * 8 + lane_ % 4 * 2 + i;
        if (c < ValueWidth()) values[c] = Out(r, n, i);
      }
    }
  }
}

}  // namespace attnd::cuda
