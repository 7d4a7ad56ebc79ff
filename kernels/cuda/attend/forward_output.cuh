// What a block of the forward kernel does with its sums, and with values that are not finite.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attend/forward_block.cuh"
#include "kernels/cuda/views.h"

namespace attnd::cuda {

SIMT_FN bool IsFinite(float x) { return fabsf(x) < INFINITY; }

template <class T, int kWidth, bool kStreams, bool kTerms, int kTiles>
SIMT_FN bool ForwardBlock<T, kWidth, kStreams, kTerms, kTiles>::HasOdd() const {
  float odd = 0;  // NaN where a number is not finite
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) odd += Out(r, n, 0) * 0.0f + Out(r, n, 1) * 0.0f;
    odd += sum_[r] * 0.0f;
  }
  return odd != 0.0f || odd != odd;
}

template <class T, int kWidth, bool kStreams, bool kTerms, int kTiles>
SIMT_FN void ForwardBlock<T, kWidth, kStreams, kTerms, kTiles>::FindOddRows(T* values) const {
  const int r = threadIdx.x / 2;
  bool is_odd = false;
  for (int c = threadIdx.x % 2; c < ValueWidth(); c += 2) {
    T& value = values[r * Shape::kValueStride + c];
    if (IsFinite(ToFloat(value))) continue;
    is_odd = true;
    value = FromFloat<T>(0);
  }
  const unsigned votes = __ballot_sync(simt::kAllLanes, is_odd);
  if (lane_ == 0) odd_rows_[threadIdx.x / 32] = votes;
  __syncthreads();
}

template <class T, int kWidth, bool kStreams, bool kTerms, int kTiles>
SIMT_FN void ForwardBlock<T, kWidth, kStreams, kTerms, kTiles>::AddOddRows() {
  // Rare: no register holds them until here. With terms AddTerms hides more.
  if constexpr (!kTerms) HideByMask();
#pragma unroll 1
  for (int key = 0; key < 64; ++key) {
    if ((odd_rows_[key / 16] >> (key % 16 * 2) & 3) == 0) continue;
    const int64_t row = c_.head.KeyRow(key_tile_ * kTile + key);
    const int owner = (lane_ & ~3) + key % 8 / 2;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int e = key / 8 * 4 + r % 2 * 2 + key % 2;
      const float weight = __shfl_sync(simt::kAllLanes, Pick(r / 2, e), owner);
      const bool hides = __shfl_sync(simt::kAllLanes, hidden_[r / 2] >> e & 1, owner) != 0;
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

template <class T, int kWidth, bool kStreams, bool kTerms, int kTiles>
SIMT_FN void ForwardBlock<T, kWidth, kStreams, kTerms, kTiles>::Store() {
  const bool is_softmax = p_.is_softmax();
  const float sink = is_softmax ? SinkOf(p_, c_.head.b, c_.head.h) : -INFINITY;
  const int64_t slots = c_.head.query_rows != nullptr ? c_.head.queries : p_.Nq;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    // A sink is a key with the value 0. It joins last: weights that are rounded to 16 bits are
    // shares of the largest key's, however much a sink outweighs all of them.
    const float max = is_softmax ? fmaxf(max_[r], sink * kLog2E) : 0.0f;
    const float base = max == -INFINITY ? 0.0f : max;
    const float share = is_softmax ? simt::Exp2(max_[r] - base) : 1.0f;
    const float own_share = sink > -INFINITY ? simt::Exp2(sink * kLog2E - base) : 0.0f;
    const float sum = fmaf(QuadSum(sum_[r]), share, own_share);
    const int64_t slot = first_slot_ + RowOfTile(r);
    // Rows of natural order from nq on exist, too.
    const int64_t row = c_.head.query_rows == nullptr ? slot : QueryRow(RowOfTile(r));
    if (slot >= slots || row < 0) continue;
    const bool is_valid = row < c_.head.nq;
    StoreRow(row, r, is_valid ? FactorOf(p_, c_.head, sum, row) * share : 0.0f,
             is_valid && sum != 0);
    if (is_softmax && lane_ % 4 == 0 && c_.place.value_part == 0) {
      const int64_t at = p_.lse.Head(c_.head.b, c_.head.h) + row * p_.lse.row;
      static_cast<float*>(p_.lse.data)[at] = is_valid ? LseOf(max, sum, sink) : -INFINITY;
    }
  }
}

template <class T, int kWidth, bool kStreams, bool kTerms, int kTiles>
SIMT_FN void ForwardBlock<T, kWidth, kStreams, kTerms, kTiles>::StoreRow(int64_t row, int r,
                                                                         float factor,
                                                                         bool sees) const {
  const int64_t at = p_.out.Head(c_.head.b, c_.head.h) + row * p_.out.row + ValueColumn();
  const DType dtype = p_.out.dtype;
  const int size = dtype == DType::kF32 ? 4 : 2;
  char* to = static_cast<char*>(p_.out.data) + at * size;
  // Two columns at once where they lie so.
  const bool pairs = reinterpret_cast<uintptr_t>(to) % (2 * static_cast<uintptr_t>(size)) == 0;
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
    const int c = n * 8 + lane_ % 4 * 2;
    if (c >= ValueWidth()) continue;
    const float x = sees ? Out(r, n, 0) * factor : 0.0f;
    const float y = sees ? Out(r, n, 1) * factor : 0.0f;
    if (!pairs || c + 1 == ValueWidth()) {
      StoreFloat(to, dtype, c, x);
      if (c + 1 < ValueWidth()) StoreFloat(to, dtype, c + 1, y);
    } else if (dtype == DType::kF32) {
      *reinterpret_cast<float2*>(to + c * 4) = make_float2(x, y);
    } else {
      *reinterpret_cast<uint32_t*>(to + c * 2) =
          dtype == DType::kF16 ? PackPair(simt::f16{}, x, y) : PackPair(simt::bf16{}, x, y);
    }
  }
}

template <class T, int kWidth, bool kStreams, bool kTerms, int kTiles>
SIMT_FN void ForwardBlock<T, kWidth, kStreams, kTerms, kTiles>::Save() const {
  float* state = c_.tiles[0].State(data_, c_.place);
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
