// Tiles of 64 rows x 64 columns in shared memory, and their products on tensor cores.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attend/attend_params.h"
#include "kernels/cuda/attend/split_product.h"
#include "kernels/cuda/simt.h"
#include "kernels/cuda/views.h"

namespace attnd::cuda::attend_grad {

constexpr int kGradThreads = 128;  // a warp for 16 rows of a tile of 64
// Blocks of a processor at least: the compiler may give a thread 255 registers.
constexpr int kGradBlocks = 2;
constexpr int kSide = 64;  // rows and columns of a tile

// Of one warp: 16 rows x 64 columns. Element [n][i] is in row RowOf(i), column ColumnOf(n, i).
using Fragment = float[8][4];
SIMT_FN int LaneRow() { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4; }
SIMT_FN int RowOf(int i) { return LaneRow() + (i >> 1) * 8; }
SIMT_FN int ColumnOf(int n, int i) { return n * 8 + threadIdx.x % 4 * 2 + (i & 1); }

SIMT_FN uint32_t Pack(simt::bf16, float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
SIMT_FN uint32_t Pack(simt::f16, float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
SIMT_FN float Low(simt::bf16, uint32_t pair) { return __uint_as_float(pair << 16); }
SIMT_FN float High(simt::bf16, uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
SIMT_FN float Low(simt::f16, uint32_t pair) {
  return __low2float(*reinterpret_cast<const __half2*>(&pair));
}
SIMT_FN float High(simt::f16, uint32_t pair) {
  return __high2float(*reinterpret_cast<const __half2*>(&pair));
}
SIMT_FN void Convert(float x, float* to) { *to = x; }
SIMT_FN void Convert(float x, simt::bf16* to) { *to = __float2bfloat16_rn(x); }
SIMT_FN void Convert(float x, simt::f16* to) { *to = __float2half_rn(x); }
// Powers of two that bring weights into the middle of the range of float16: of P, and of dS whose
// bounds (GradData::head_sizes) are at most `size`: 2^10 / size, cut to powers that are normal with
// their inverse.
constexpr float kWeightFactor = 16384;
SIMT_FN float ScoreFactor(float size) {
  const int exponent = static_cast<int>(__float_as_uint(size) >> 23);
  const int wanted = 127 + 10 - (exponent - 127);
  if (!(size > 0)) return 1;
  return __uint_as_float(static_cast<unsigned>(min(max(wanted, 2), 252)) << 23);
}

SIMT_FN float ToFloat(float x) { return x; }
SIMT_FN float ToFloat(simt::bf16 x) { return __bfloat162float(x); }
SIMT_FN float ToFloat(simt::f16 x) { return __half2float(x); }

// Whether no weight becomes 0 or infinite when it is rounded to T times `factor`.
SIMT_FN bool StaysInRange(simt::f16, const Fragment& weights, float factor) {
  bool stays = true;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float weight = weights[n][i], size = fabsf(weight * factor);
      const bool fits = size > 0x1p-25f && size < 65504;
      stays = stays && (fits || weight == 0 || weight - weight != 0);
    }
  }
  return stays;
}
template <class T>
SIMT_FN bool StaysInRange(T, const Fragment&, float) {
  return true;
}

// 16-bit elements: the XOR spreads 16 bytes of eight rows over all banks.
template <class T>
struct TileOf {
  static constexpr int kElements = kSide * kSide;
  SIMT_FN static int At(int row, int column) {
    return row * kSide + (((column >> 3) ^ (row & 7)) << 3) + (column & 7);
  }

  // sums += own other^T over `width` columns of both. kOwnIsRight: rounded as other own^T is.
  template <bool kOwnIsRight>
  SIMT_FN static void AddProduct(Fragment& sums, const T* own, const T* other, int width) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int lower = lane & 7, odd = lane >> 3 & 1, upper = lane >> 4;
#pragma unroll
    for (int d = 0; d < 4; ++d) {
      if (d * 16 >= width) break;
      uint32_t a[4];
      simt::LdMatrixX4(a, own + At(warp * 16 + odd * 8 + lower, (d * 2 + upper) * 8));
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        uint32_t b[4];
        simt::LdMatrixX4(b, other + At(n * 16 + upper * 8 + lower, (d * 2 + odd) * 8));
        simt::Mma(T(), sums[n * 2], a, b[0], b[1]);
        simt::Mma(T(), sums[n * 2 + 1], a, b[2], b[3]);
      }
    }
  }

  // sums += weights other, over the first `width` columns of `other`. Weights are those of the own
  // rows (in rows) to the other ones, times `factor`. They are rounded to T, or, where kExact,
  // split into two T.
  template <bool kExact>
  SIMT_FN static void AddWeighted(Fragment& sums, const Fragment& weights, float factor,
                                  const T* other, int width) {
    const int lane = threadIdx.x % 32;
    const int lower = lane & 7, odd = lane >> 3 & 1, upper = lane >> 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t a[4], rest[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&of)[4] = weights[j * 2 + (i >> 1)];
        const float x = of[(i & 1) * 2] * factor, y = of[(i & 1) * 2 + 1] * factor;
        a[i] = Pack(T(), x, y);
        if (kExact) rest[i] = Pack(T(), x - Low(T(), a[i]), y - High(T(), a[i]));
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        if (n * 16 >= width) break;
        uint32_t b[4];
        simt::LdMatrixX4Trans(b, other + At(j * 16 + odd * 8 + lower, (n * 2 + upper) * 8));
        if (kExact) {
          simt::Mma(T(), sums[n * 2], rest, b[0], b[1]);
          simt::Mma(T(), sums[n * 2 + 1], rest, b[2], b[3]);
        }
        simt::Mma(T(), sums[n * 2], a, b[0], b[1]);
        simt::Mma(T(), sums[n * 2 + 1], a, b[2], b[3]);
      }
    }
  }
};

// float32: rows of 68, so that fragments of eight rows lie in different banks.
template <>
struct TileOf<float> {
  static constexpr int kStride = kSide + 4;
  static constexpr int kElements = kSide * kStride;
  SIMT_FN static int At(int row, int column) { return row * kStride + column; }

  template <bool kOwnIsRight>
  SIMT_FN static void AddProduct(Fragment& sums, const float* own, const float* other, int width) {
    const int group = threadIdx.x % 32 / 4, lane = threadIdx.x % 4, row = LaneRow();
#pragma unroll 2
    for (int d = 0; d < 8; ++d) {
      if (d * 8 >= width) break;
      uint32_t high[4], low[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        simt::SplitTf32(own[At(row + (i & 1) * 8, d * 8 + lane + (i >> 1) * 4)], &high[i], &low[i]);
      }
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const float* b = other + At(n * 8 + group, d * 8 + lane);
        MmaSplit<kOwnIsRight>(sums[n], high, low, b[0], b[4]);
      }
    }
  }

  // Columns of weights as they lie in a fragment are columns t and t + 4 of the left operand for 2
  // t and 2 t + 1: any order does, if the rows of `other` have the same. `other` has all of its
  // bits, so there is nothing to choose.
  template <bool>
  SIMT_FN static void AddWeighted(Fragment& sums, const Fragment& weights, float,
                                  const float* other, int width) {
    const int group = threadIdx.x % 32 / 4, lane = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      uint32_t high[4], low[4];
      constexpr int kPlace[4] = {0, 2, 1, 3};
#pragma unroll
      for (int i = 0; i < 4; ++i) simt::SplitTf32(weights[j][kPlace[i]], &high[i], &low[i]);
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        if (n * 8 >= width) break;
        const float* b = other + At(j * 8 + lane * 2, n * 8 + group);
        MmaSplit<false, true>(sums[n], high, low, b[0], b[kStride]);
      }
    }
  }
};

// Rows of one head, from the second tensor on from row `second_from` on.
struct TileSource {
  HeadRows first, second;
  int64_t second_from;
  int width;
  bool vectors;  // rows begin at multiples of 16 bytes, and elements are those of the tile
};

// LoadTile where 16 bytes are copied at once. kSecond: some rows may be of the second tensor.
template <bool kSecond, class T>
SIMT_FN void CopyTile(T* tile, const TileSource& source, const int32_t* rows, int column) {
  constexpr int kPiece = 16 / sizeof(T), kPieces = kSide / kPiece, kApart = kGradThreads / kPieces;
  // The same columns of every kApart-th row.
  const int at = threadIdx.x % kPieces * kPiece, top = threadIdx.x / kPieces;
  const int width = min(source.width - column, kSide);
  if (at >= (width + 15) / 16 * 16) return;
  const bool in_width = at < width;
  const T* first = static_cast<const T*>(source.first.data) + column + at;
  const T* second = static_cast<const T*>(source.second.data) + column + at;
#pragma unroll 4
  for (int row = top; row < kSide; row += kApart) {
    const int64_t named = rows[row];
    const bool valid = in_width && named >= 0;
    // Where nothing is read the address is any that is aligned.
    const T* from = static_cast<const T*>(source.first.data);
    if (valid) from = first + named * source.first.row;
    if (kSecond && valid && named >= source.second_from) {
      from = second + (named - source.second_from) * source.second.row;
    }
    simt::CopyAsync<16>(tile + TileOf<T>::At(row, at), from, valid);
  }
}

// Starts to load 64 columns from `column` on of the rows that `rows` names (-1: zeros). Columns
// beyond the width are zero as far as products read them.
template <class T>
SIMT_FN void LoadTile(T* tile, const TileSource& source, const int32_t* rows, int column) {
  constexpr int kPiece = 16 / sizeof(T), kPieces = kSide / kPiece;
  if (source.vectors && source.width % kPiece == 0) {
    if (source.second_from == INT64_MAX || source.second.data == nullptr) {
      return CopyTile<false>(tile, source, rows, column);
    }
    return CopyTile<true>(tile, source, rows, column);
  }
  const int width = min(source.width - column, kSide);
  const int pieces = (width + 15) / 16 * 16 / kPiece;
  for (int at = threadIdx.x; at < kSide * kPieces; at += kGradThreads) {
    const int row = at / kPieces, piece = at % kPieces;
    if (piece >= pieces) continue;
    T* to = tile + TileOf<T>::At(row, piece * kPiece);
    const int64_t named = rows[row];
    const bool exists = named >= 0, second = named >= source.second_from;
    // A copy: a reference to either would keep both in local memory.
    const HeadRows from = second ? source.second : source.first;
    const int64_t begin =
        exists ? from.At(second ? named - source.second_from : named) + column + piece * kPiece : 0;
#pragma unroll 1
    for (int i = 0; i < kPiece; ++i) {
      float x = 0;
      if (exists && piece * kPiece + i < width) x = LoadFloat(from.data, from.dtype, begin + i);
      Convert(x, to + i);
    }
  }
}

}  // namespace attnd::cuda::attend_grad
