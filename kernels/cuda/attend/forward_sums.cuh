// The scores, weights and sums of a warp of the forward kernels of attend, in registers.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/attend/attend_params.h"
#include "kernels/cuda/attend/attend_terms.h"
#include "kernels/cuda/attend/attend_tiles.h"
#include "kernels/cuda/simt.h"
#include "kernels/cuda/views.h"

namespace attnd::cuda {

SIMT_FN bool IsFinite(float x) { return fabsf(x) < INFINITY; }

// Of kRows16 times 16 rows of queries, kColumns values each. Row r of a lane, r < kRows, is row
// lane / 4 + r * 8 of the warp's.
template <int kColumns, int kRows16>
class ForwardSums {
 protected:
  static constexpr int kRows = 2 * kRows16;

  // Of columns n * 8 + lane % 4 * 2 + i.
  SIMT_FN float& Score(int r, int n, int i) { return s_[r / 2][n][r % 2 * 2 + i]; }
  SIMT_FN float& Out(int r, int n, int i) { return out_[r / 2][n][r % 2 * 2 + i]; }
  SIMT_FN float Out(int r, int n, int i) const { return out_[r / 2][n][r % 2 * 2 + i]; }

  SIMT_FN void ClearScores() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int n = 0; n < 8; ++n) Score(r, n, 0) = Score(r, n, 1) = 0;
    }
  }
  SIMT_FN void Clear(float max) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) Out(r, n, 0) = Out(r, n, 1) = 0;
      max_[r] = max;
      sum_[r] = 0;
    }
  }

  // Softmax (Milakov and Gimelshein 2018) one tile of keys further: scores times `factor` become
  // weights as shares of e^max, and older sums shrink to the new maximum. kExact: of scores rounded
  // to float32, so that the weight of one key is exactly 1; factor is 1. Otherwise a row whose
  // |max| is small takes one operation a weight, with an error of |max| 2^-23. REQUIRES: factor >
  // 0.
  template <bool kExact>
  SIMT_FN void Soften(float factor) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float most = -INFINITY;
#pragma unroll
      for (int n = 0; n < 8; ++n) most = fmaxf(most, fmaxf(Score(r, n, 0), Score(r, n, 1)));
      const float old = max_[r];
      max_[r] = fmaxf(old, QuadMax(most) * factor);
      // A row that has seen nothing: -inf - 0 instead of -inf - -inf.
      const float base = max_[r] == -INFINITY ? 0.0f : max_[r];
      const float decay = WeightBelow(old, base);
      const bool is_small = kExact || fabsf(base) <= kSmallScore;
      const float base_2 = is_small ? base * kLog2E : 0.0f;
      if (__any_sync(simt::kAllLanes, !is_small)) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            // What is left is multiplied with the factor again: its rounding is as small as itself.
            const float below = __fsub_rn(ScaledProduct(factor, Score(r, n, i)), base);
            if (!is_small) Score(r, n, i) = __fdividef(below, factor);
          }
        }
      }
      float sum = 0;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& score = Score(r, n, i);
          score =
              kExact ? WeightBelow(score, base) : simt::Exp2(fmaf(score, factor * kLog2E, -base_2));
          sum += score;
        }
      }
      // Which products join a sum unrounded is said here, not left to the compiler: kernels that
      // serve the same rows have the same bits.
      sum_[r] = fmaf(sum_[r], decay, sum);
      if (decay == 1.0f) continue;
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) Out(r, n, i) *= decay;
      }
    }
  }

  // Whether a sum is not finite.
  SIMT_FN bool HasOdd() const {
    float odd = 0;  // NaN where a number is not finite
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) odd += Out(r, n, 0) * 0.0f + Out(r, n, 1) * 0.0f;
      odd += sum_[r] * 0.0f;
    }
    return odd != 0.0f || odd != odd;
  }

  // Columns [column, column + width) of the rows from slot `first` on, and lse where column is 0.
  SIMT_FN void StoreRows(const AttendData& p, const AttendHead& head, int64_t first, int column,
                         int width) const {
    const int lane = threadIdx.x % 32;
    const bool is_softmax = p.is_softmax();
    const float sink = is_softmax ? SinkOf(p, head.b, head.h) : -INFINITY;
    const int64_t slots = head.query_rows != nullptr ? head.queries : p.Nq;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      // A sink is a key with the value 0. It joins last: weights that are rounded to 16 bits are
      // shares of the largest key's, however much a sink outweighs all of them.
      const float max = is_softmax ? fmaxf(max_[r], sink) : 0.0f;
      const float base = max == -INFINITY ? 0.0f : max;
      const float share = is_softmax ? WeightBelow(max_[r], base) : 1.0f;
      const float own_share = sink > -INFINITY ? WeightBelow(sink, base) : 0.0f;
      const float sum = fmaf(QuadSum(sum_[r]), share, own_share);
      const int64_t slot = first + lane / 4 + r * 8;
      // Rows of natural order from nq on exist, too.
      const int64_t row = head.query_rows == nullptr ? slot : head.QueryRow(slot);
      if (slot >= slots || row < 0) continue;
      const bool is_valid = row < head.nq;
      StoreRow(p, p.out.Head(head.b, head.h) + row * p.out.row + column, width, r,
               is_valid ? FactorOf(p, head, sum, row) * share : 0.0f, is_valid && sum != 0);
      if (is_softmax && lane % 4 == 0 && column == 0) {
        StoreLse(p, head.b, head.h, row, RowLse::Of(max, is_valid ? sum : 0.0f));
      }
    }
  }

  float s_[kRows16][8][4];  // products, scores, weights
  float out_[kRows16][kColumns / 8][4];
  // Of each row; the sum over this lane's keys. Without softmax 0, and the pairs seen.
  float max_[kRows], sum_[kRows];

 private:
  SIMT_FN void StoreRow(const AttendData& p, int64_t at, int width, int r, float factor,
                        bool sees) const {
    const int lane = threadIdx.x % 32;
    const DType dtype = p.out.dtype;
    const int size = dtype == DType::kF32 ? 4 : 2;
    char* to = static_cast<char*>(p.out.data) + at * size;
    // Two columns at once where they lie so.
    const bool pairs = reinterpret_cast<uintptr_t>(to) % (2 * static_cast<uintptr_t>(size)) == 0;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      const int c = n * 8 + lane % 4 * 2;
      if (c >= width) continue;
      const float x = sees ? Out(r, n, 0) * factor : 0.0f;
      const float y = sees ? Out(r, n, 1) * factor : 0.0f;
      if (!pairs || c + 1 == width) {
        StoreFloat(to, dtype, c, x);
        if (c + 1 < width) StoreFloat(to, dtype, c + 1, y);
      } else if (dtype == DType::kF32) {
        *reinterpret_cast<float2*>(to + c * 4) = make_float2(x, y);
      } else {
        *reinterpret_cast<uint32_t*>(to + c * 2) =
            dtype == DType::kF16 ? PackPair(simt::f16{}, x, y) : PackPair(simt::bf16{}, x, y);
      }
    }
  }
};

}  // namespace attnd::cuda
