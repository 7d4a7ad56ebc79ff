// Tiles of rows in shared memory, and the products of attend over them. A warp owns 16 rows of the
// left side or, of 16-bit elements, 32, which share what it reads of the right side; a tile has 64
// rows. Of float32 a product is three of TF32. In accumulators [m][8][4] of 64 columns, element
// [m][n][i] of a lane is row m * 16 + lane / 4 + (i >> 1) * 8, column n * 8 + lane % 4 * 2 + (i &
// 1).
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attend/attend_params.h"
#include "kernels/cuda/attend/split_product.h"
#include "kernels/cuda/simt.h"
#include "kernels/cuda/views.h"
#include "kernels/device/pattern.h"

namespace attnd::cuda {

constexpr int kAttendThreads = 128;

template <class T>
constexpr DType kDTypeOf = std::is_same_v<T, float>       ? DType::kF32
                           : std::is_same_v<T, simt::f16> ? DType::kF16
                                                          : DType::kBF16;

// Elements from row to row of a tile: eight rows lie in different banks, for ldmatrix (rows of 16
// bytes) and for fragments of TF32 (four elements of eight rows) alike.
template <class T>
constexpr int kTilePad = 16 / static_cast<int>(sizeof(T));
template <class T>
constexpr int TileStride(int width) {
  return width + kTilePad<T>;
}
// Columns that a product reads at a time.
template <class T>
constexpr int kProductStep = std::is_same_v<T, float> ? 8 : 16;

// Columns of a tile that exist are a multiple of this many, the last of them zeros.
template <class T>
constexpr int kPadded = std::is_same_v<T, float> ? 32 : 16;

template <class T>
SIMT_FN T FromFloat(float x) {
  if constexpr (std::is_same_v<T, float>) return x;
  if constexpr (std::is_same_v<T, simt::f16>) return __float2half_rn(x);
  if constexpr (std::is_same_v<T, simt::bf16>) return __float2bfloat16_rn(x);
}

// Whether cp.async can copy rows of `width` elements from column 0 on to tiles of T.
template <class T>
SIMT_FN bool CopiesRows(const HeadRows& rows, int64_t width) {
  if (rows.data == nullptr) return true;
  constexpr int64_t kPer = 16 / sizeof(T);
  return rows.dtype == kDTypeOf<T> && reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 &&
         rows.row % kPer == 0 && width % kPer == 0;
}

// Whether four elements at a time can be read as LoadFour does, of `width` from column 0 on.
SIMT_FN bool ReadsFour(const HeadRows& rows, int64_t width) {
  const uintptr_t bytes = rows.dtype == DType::kF32 ? 16 : 8;
  return rows.data == nullptr || (reinterpret_cast<uintptr_t>(rows.data) % bytes == 0 &&
                                  rows.row % 4 == 0 && width % 4 == 0);
}
SIMT_FN void LoadFour(const HeadRows& rows, int64_t at, float (&x)[4]) {
  if (rows.dtype == DType::kF32) {
    const float4 four = *reinterpret_cast<const float4*>(static_cast<const float*>(rows.data) + at);
    x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
    return;
  }
  const uint2 four = *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(rows.data) + at);
  const uint32_t pairs[2] = {four.x, four.y};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (rows.dtype == DType::kBF16) {
      x[2 * i] = __uint_as_float(pairs[i] << 16);
      x[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
    } else {
      const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&pairs[i]));
      x[2 * i] = two.x, x[2 * i + 1] = two.y;
    }
  }
}

// Rows of one tensor and, from row `own_rows` on, of a second one, whose rows are always listed.
struct RowSource {
  HeadRows own, second;
  int64_t own_rows;
  int width;    // columns that exist
  bool copies;  // CopiesRows of both
  bool widens;  // ReadsFour of both

  template <class T>
  SIMT_FN static RowSource Of(const HeadRows& own, const HeadRows& second, int64_t own_rows,
                              int width) {
    return {own,
            second,
            own_rows,
            width,
            CopiesRows<T>(own, width) && CopiesRows<T>(second, width),
            ReadsFour(own, width) && ReadsFour(second, width)};
  }
  // The tensor of row `row`, and where it begins there.
  SIMT_FN const HeadRows& Of(int64_t row) const { return row < own_rows ? own : second; }
  SIMT_FN int64_t At(int64_t row) const {
    return row < own_rows ? own.At(row) : second.At(row - own_rows);
  }
};

// Starts to load columns [column, column + kWidth) of the rows of a tile. Columns beyond the
// source's are zeros up to a multiple of kPadded and undefined beyond. For all threads
// of the block; a copy may be under way (CopyCommit) when it returns.
template <class T, int kWidth>
SIMT_FN void LoadTile(T* tile, int stride, const RowSource& source, int column,
                      const ChosenRows& rows) {
  const int columns = min(source.width - column, kWidth);
  const int padded = (columns + kPadded<T> - 1) / kPadded<T> * kPadded<T>;
  if (source.copies) {
    // The same columns of every kApart-th row.
    constexpr int kPer = 16 / sizeof(T), kChunks = kWidth / kPer, kApart = kAttendThreads / kChunks;
    const int c = threadIdx.x % kChunks * kPer, top = threadIdx.x / kChunks;
    if (c >= padded) return;
    T* to = tile + top * stride + c;
    const int64_t count = c < columns ? min(rows.count, int64_t{64}) : 0;
    if (rows.listed == nullptr) {
      // Rows of the first tensor, one after another: an addition leads from each to the next.
      const T* from =
          static_cast<const T*>(source.own.data) + source.own.At(rows.first + top) + column + c;
      const int64_t apart = source.own.At(kApart);
      const int left = static_cast<int>(count) - top;
#pragma unroll
      for (int r = 0; r < 64; r += kApart) {
        simt::CopyAsync<16>(to + r * stride, from, r < left);
        from += apart;
      }
      return;
    }
    // Nothing waits for a copy, and addresses take registers.
#pragma unroll 1
    for (int r = top; r < 64; r += kApart, to += kApart * stride) {
      const int64_t row = rows.At(r);
      const bool valid = row >= 0 && c < columns;
      // Where nothing is read the address is any that is aligned.
      const T* from = static_cast<const T*>(source.own.data);
      if (valid) from = static_cast<const T*>(source.Of(row).data) + source.At(row) + column + c;
      simt::CopyAsync<16>(to, from, valid);
    }
    return;
  }
  if (source.widens && std::is_same_v<T, float>) {
    constexpr int kChunks = kWidth / 4;
#pragma unroll 2
    for (int i = threadIdx.x; i < 64 * kChunks; i += kAttendThreads) {
      const int r = i / kChunks, c = i % kChunks * 4;
      if (c >= padded) continue;
      const int64_t row = rows.At(r);
      float x[4] = {0, 0, 0, 0};
      if (row >= 0 && c < columns) LoadFour(source.Of(row), source.At(row) + column + c, x);
      *reinterpret_cast<float4*>(tile + r * stride + c) = make_float4(x[0], x[1], x[2], x[3]);
    }
    return;
  }
#pragma unroll 2
  for (int i = threadIdx.x; i < 64 * kWidth; i += kAttendThreads) {
    const int r = i / kWidth, c = i % kWidth;
    if (c >= padded) continue;
    const int64_t row = rows.At(r);
    float x = 0;
    if (row >= 0 && c < columns) {
      const HeadRows& of = source.Of(row);
      x = LoadFloat(of.data, of.dtype, source.At(row) + column + c);
    }
    tile[r * stride + c] = FromFloat<T>(x);
  }
}

// s += rows right^T: of the warp's rows (`left`: its first) with 64 rows, over `width` columns, a
// multiple of the step up to kWidth. kWhole: width is kWidth, and nothing is tested.
template <class T, int kWidth, bool kWhole, int kRows16>
SIMT_FN void AddProducts(float (&s)[kRows16][8][4], const T* left, const T* right, int stride,
                         int width) {
  const int lane = threadIdx.x % 32;
  if constexpr (std::is_same_v<T, float>) {
    static_assert(kRows16 == 1);
    const int group = lane / 4, t = lane % 4;
    const float* a_row = left + group * stride + t;
    const float* b_row = right + group * stride + t;
#pragma unroll 1
    for (int c = 0; c < kWidth; c += 8) {
      if (!kWhole && c >= width) break;
      uint32_t high[4], low[4];
      simt::SplitTf32(a_row[c], &high[0], &low[0]);
      simt::SplitTf32(a_row[8 * stride + c], &high[1], &low[1]);
      simt::SplitTf32(a_row[c + 4], &high[2], &low[2]);
      simt::SplitTf32(a_row[8 * stride + c + 4], &high[3], &low[3]);
#pragma unroll
      for (int n = 0; n < 8; n += 4) {
        MmaSplitTiles<4>(&s[0][n], high, low,
                         [&](int of, int i) { return b_row[(n + of) * 8 * stride + c + i * 4]; });
      }
    }
  } else {
    // Where this lane points ldmatrix: matrix lane / 8, row lane % 8.
    const int lower = lane & 7, odd = lane >> 3 & 1, upper = lane >> 4;
    const T* a_row = left + (odd * 8 + lower) * stride + upper * 8;
    const T* b_row = right + (upper * 8 + lower) * stride + odd * 8;
#pragma unroll(kWhole ? kWidth / 16 : 1)
    for (int c = 0; c < kWidth; c += 16) {
      if (!kWhole && c >= width) break;
      uint32_t a[kRows16][4];
#pragma unroll
      for (int m = 0; m < kRows16; ++m) simt::LdMatrixX4(a[m], a_row + m * 16 * stride + c);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        uint32_t b[4];
        simt::LdMatrixX4(b, b_row + n * 16 * stride + c);
#pragma unroll
        for (int m = 0; m < kRows16; ++m) {
          simt::Mma(T{}, s[m][n * 2], a[m], b[0], b[1]);
          simt::Mma(T{}, s[m][n * 2 + 1], a[m], b[2], b[3]);
        }
      }
    }
  }
}

SIMT_FN uint32_t PackPair(simt::bf16, float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
SIMT_FN uint32_t PackPair(simt::f16, float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

template <class T>
SIMT_FN float RestOf(float x) {
  if constexpr (std::is_same_v<T, simt::f16>) return x - __half2float(__float2half_rn(x));
  if constexpr (std::is_same_v<T, simt::bf16>) return x - __bfloat162float(__float2bfloat16_rn(x));
}
template <class T>
SIMT_FN uint32_t PackRests(float low, float high) {
  return PackPair(T{}, RestOf<T>(low), RestOf<T>(high));
}

// out += weights values: weights of the warp's rows as accumulators, 64 rows of values, `width`
// columns, a multiple of the step up to kWidth. kExact: weights of 16 bits have two parts (float32
// has all of its bits). kWhole: width is kWidth, and nothing is tested.
template <class T, int kWidth, bool kExact, bool kWhole, int kRows16>
SIMT_FN void AddWeighted(float (&out)[kRows16][kWidth / 8][4],
                         const float (&weights)[kRows16][8][4], const T* values, int stride,
                         int width) {
  const int lane = threadIdx.x % 32;
  if constexpr (std::is_same_v<T, float>) {
    static_assert(kRows16 == 1);
    const int group = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      // Columns t and t + 4 of the left side are keys 2 t and 2 t + 1: those of this lane.
      const float(&of)[4] = weights[0][n];
      uint32_t high[4], low[4];
      simt::SplitTf32(of[0], &high[0], &low[0]);
      simt::SplitTf32(of[2], &high[1], &low[1]);
      simt::SplitTf32(of[1], &high[2], &low[2]);
      simt::SplitTf32(of[3], &high[3], &low[3]);
      const float* row = values + (n * 8 + t * 2) * stride + group;
#pragma unroll
      for (int m = 0; m < kWidth / 8; m += 4) {
        if (!kWhole && m * 8 >= width) continue;
        MmaSplitTiles<4, false, true>(
            &out[0][m], high, low, [&](int of, int i) { return row[i * stride + (m + of) * 8]; });
      }
    }
  } else {
    const int lower = lane & 7, odd = lane >> 3 & 1, upper = lane >> 4;
    const T* row = values + (odd * 8 + lower) * stride + upper * 8;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      // Scores leave the first product in the layout in which the second one reads them.
      uint32_t a[kRows16][4], rest[kRows16][4];
#pragma unroll
      for (int m = 0; m < kRows16; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float(&of)[4] = weights[m][j * 2 + (i >> 1)];
          a[m][i] = PackPair(T{}, of[i % 2 * 2], of[i % 2 * 2 + 1]);
          if (kExact) rest[m][i] = PackRests<T>(of[i % 2 * 2], of[i % 2 * 2 + 1]);
        }
      }
#pragma unroll
      for (int n = 0; n < kWidth / 16; ++n) {
        if (!kWhole && n * 16 >= width) continue;
        uint32_t b[4];
        simt::LdMatrixX4Trans(b, row + j * 16 * stride + n * 16);
#pragma unroll
        for (int m = 0; m < kRows16; ++m) {
          if (kExact) {
            simt::Mma(T{}, out[m][n * 2], rest[m], b[0], b[1]);
            simt::Mma(T{}, out[m][n * 2 + 1], rest[m], b[2], b[3]);
          }
          simt::Mma(T{}, out[m][n * 2], a[m], b[0], b[1]);
          simt::Mma(T{}, out[m][n * 2 + 1], a[m], b[2], b[3]);
        }
      }
    }
  }
}

// Of the four lanes that share a row.
SIMT_FN float QuadMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(simt::kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(simt::kAllLanes, x, 2));
}
SIMT_FN float QuadSum(float x) {
  x += __shfl_xor_sync(simt::kAllLanes, x, 1);
  return x + __shfl_xor_sync(simt::kAllLanes, x, 2);
}

}  // namespace attnd::cuda
