// Tiles of 64 rows with all of their columns (kD: 64 or 128) in shared memory, 16 bits each, and
// their products on tensor cores. The XOR spreads 16 bytes of eight rows over all banks.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attend/attend_grad_tile.h"
#include "kernels/cuda/simt.h"

namespace attnd::cuda::attend_grad {

// Of one warp: 16 rows x kD columns, as Fragment.
template <int kD>
using WideFragment = float[kD / 8][4];

template <class T, int kD>
struct WideTile {
  static constexpr int kElements = kSide * kD;

  // `row` and what is added to it: where it is a multiple of 8, At(row + it, c) is at it * kD more.
  SIMT_FN static int At(int row, int column) {
    return row * kD + (((column >> 3) ^ (row & 7)) << 3) + (column & 7);
  }

  // Starts to copy `count` rows of `width` columns, a multiple of 8; zeros for further rows.
  // Columns beyond stay as they are.
  SIMT_FN static void Copy(T* tile, const T* from, int64_t row, int count, int width) {
    // The same columns of every kApart-th row: an addition leads from each to the next.
    constexpr int kPieces = kD / 8, kApart = kGradThreads / kPieces;
    const unsigned piece = threadIdx.x % kPieces, top = threadIdx.x / kPieces;
    if (piece * 8 >= static_cast<unsigned>(width)) return;
    T* to = tile + top * kD + (piece ^ top % 8) * 8;
    from += top * row;
    from += piece * 8;
    const int64_t apart = kApart * row;
    if (count >= kSide) {
#pragma unroll
      for (int r = 0; r < kSide; r += kApart, from += apart) {
        simt::CopyAsync<16>(to + r * kD, from, true);
      }
      return;
    }
#pragma unroll 1
    for (int r = 0; r < kSide; r += kApart, from += apart) {
      simt::CopyAsync<16>(to + r * kD, from, r + top < static_cast<unsigned>(count));
    }
  }
  // Zeros for the columns that Copy leaves.
  SIMT_FN static void ClearBeyond(T* tile, int width) {
    if (width >= kD) return;
    for (int at = threadIdx.x; at < kSide * (kD / 8); at += kGradThreads) {
      const int row = at / (kD / 8), column = at % (kD / 8) * 8;
      if (column >= width)
        *reinterpret_cast<uint4*>(tile + At(row, column)) = make_uint4(0, 0, 0, 0);
    }
  }

  // sums += own other^T of the warp's 16 own rows.
  SIMT_FN static void AddProduct(Fragment& sums, const T* own, const T* other) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int lower = lane & 7, odd = lane >> 3 & 1, upper = lane >> 4;
    const int a_at = (warp * 16 + odd * 8 + lower) * kD + (upper ^ lower) * 8;
    const int b_at = (upper * 8 + lower) * kD + (odd ^ lower) * 8;
#pragma unroll
    for (int d = 0; d < kD / 16; ++d) {
      const int piece = d % 4 * 16, half = d / 4 * 64;
      uint32_t a[4];
      simt::LdMatrixX4(a, own + (a_at ^ piece) + half);
      const T* b_row = other + (b_at ^ piece) + half;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        uint32_t b[4];
        simt::LdMatrixX4(b, b_row + n * 16 * kD);
        simt::Mma(T(), sums[n * 2], a, b[0], b[1]);
        simt::Mma(T(), sums[n * 2 + 1], a, b[2], b[3]);
      }
    }
  }

  // sums += weights other: weights of the warp's 16 own rows to 64 others, times `factor` (of
  // float16), rounded to T.
  SIMT_FN static void AddWeighted(WideFragment<kD>& sums, const Fragment& weights, float factor,
                                  const T* other) {
    const int lane = threadIdx.x % 32;
    const int lower = lane & 7, odd = lane >> 3 & 1, upper = lane >> 4;
    const int b_at = (odd * 8 + lower) * kD + (upper ^ lower) * 8;
    const float by = std::is_same_v<T, simt::f16> ? factor : 1.0f;
    uint32_t a[4][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&of)[4] = weights[j * 2 + (i >> 1)];
        a[j][i] = Pack(T(), of[(i & 1) * 2] * by, of[(i & 1) * 2 + 1] * by);
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int n = 0; n < kD / 16; ++n) {
        uint32_t b[4];
        simt::LdMatrixX4Trans(b, other + (b_at ^ (n % 4 * 16)) + n / 4 * 64 + j * 16 * kD);
        simt::Mma(T(), sums[n * 2], a[j], b[0], b[1]);
        simt::Mma(T(), sums[n * 2 + 1], a[j], b[2], b[3]);
      }
    }
  }
};

}  // namespace attnd::cuda::attend_grad
