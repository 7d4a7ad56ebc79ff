// One tile of a product: tiles of the operands in shared memory, products of tensor cores.
#pragma once

#include <type_traits>

#include "kernels/cuda/matmul/matmul_task.h"
#include "kernels/cuda/simt.h"
#include "kernels/cuda/views.h"

namespace attnd::cuda {

// T: bf16, f16, or float for products of float32 by three of TF32. Each warp takes kRowTiles x
// kColumnTiles products of 16 x 8.
template <class T_, int kSize_, int kWarpsM, int kWarpsN>
struct MatMulShape {
  using T = T_;
  static constexpr bool kIs16 = sizeof(T) == 2;
  static constexpr int kSize = kSize_;  // rows and columns of the result
  static constexpr int kK = kIs16 ? MatMulTask::kStep16 : MatMulTask::kStep32;
  static constexpr int kThreads = kWarpsM * kWarpsN * simt::kWarp;
  static constexpr int kRowTiles = kSize / kWarpsM / 16, kColumnTiles = kSize / kWarpsN / 8;
  static constexpr int kWarpRows = kSize / kWarpsM, kWarpColumns = kSize / kWarpsN;
  static constexpr int kWarpsAcross = kWarpsN;
  // Distances of lines in shared memory. With these paddings the eight lines of an 8 x 8 matrix, or
  // the lanes of a fragment, fall on different banks.
  static constexpr int kPitchK = kK + (kIs16 ? 8 : 4);  // of lines along k
  static constexpr int kPitch = kSize + 8;              // of lines across
  static constexpr int kTile =
      kSize * kPitchK > kK* kPitch ? kSize* kPitchK : kK* kPitch;  // elements of an operand
  static constexpr int kStages = 3;
  static constexpr size_t kOperandBytes = size_t{2} * kStages * kTile * sizeof(T);
  static constexpr size_t kResultBytes = sizeof(float) * kSize * (kSize + 8);
  static constexpr size_t kBytes = kOperandBytes > kResultBytes ? kOperandBytes : kResultBytes;
};

// Offset of a matrix in dimensions `dims`, the last one fastest.
SIMT_FN int64_t MatrixOffset(int rank, const std::array<int64_t, kMaxRank - 2>& dims,
                             const std::array<int64_t, kMaxRank - 2>& strides, int64_t matrix) {
  int64_t offset = 0;
  for (int i = rank - 1; i >= 0; --i) {
    const int64_t rest = matrix / dims[i];
    offset += (matrix - rest * dims[i]) * strides[i];
    matrix = rest;
  }
  return offset;
}

// What a block reads of an operand: lines of elements, of one axis k and one of `outer` rows or
// columns. In shared memory: threads need it at times, and registers always.
struct TileSource {
  const unsigned char* data;  // element (outer 0, k 0) of the first summed matrix
  int64_t line, step;         // distances of lines and of elements of a line
  int64_t k;                  // distance along k
  int outer;
  int bytes;  // of an element
  DType dtype;
  TileCopy copy;
  bool along_k;
};

SIMT_FN TileSource SourceOf(const MatMulOperand& side, int64_t across, int64_t along,
                            int64_t offset, int outer) {
  TileSource s;
  s.bytes = side.dtype == DType::kF32 ? 4 : 2;
  s.data = static_cast<const unsigned char*>(side.data) + offset * s.bytes;
  s.line = side.along_k ? across : along;
  s.step = side.along_k ? along : across;
  s.k = along;
  s.outer = outer;
  s.dtype = side.dtype;
  s.copy = side.copy;
  s.along_k = side.along_k;
  return s;
}

template <class T>
SIMT_FN T LoadAs(DType dtype, const unsigned char* from, int64_t at) {
  if constexpr (sizeof(T) == 2) {
    return reinterpret_cast<const T*>(from)[at];
  } else {
    return LoadFloat(from, dtype, at);
  }
}

// Starts the copy of a tile of which `lines` lines of `length` elements lie in the matrix; the rest
// becomes 0.
template <class T, int kLines, int kLength, int kPitch, int kThreads>
SIMT_FN void LoadLines(const TileSource& s, const unsigned char* from, int lines, int length,
                       T* tile) {
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t distance = s.line, step = s.step;
  const DType dtype = s.dtype;
  if (s.copy == TileCopy::kVectors) {
    constexpr int kVector = 16 / sizeof(T), kVectors = kLength / kVector;
    static_assert(kLines * kVectors % kThreads == 0);
    const T* const data = reinterpret_cast<const T*>(from);
#pragma unroll
    for (int i = 0; i < kLines * kVectors / kThreads; ++i) {
      const int number = thread + i * kThreads;
      const int line = number / kVectors, at = number % kVectors * kVector;
      const bool valid = line < lines && at < length;
      simt::CopyAsync(tile + line * kPitch + at, valid ? data + line * distance + at : data, valid);
    }
    return;
  }
  if constexpr (sizeof(T) == 4) {
    if (s.copy == TileCopy::kWords) {
      const T* const data = reinterpret_cast<const T*>(from);
#pragma unroll 1
      for (int number = thread; number < kLines * kLength; number += kThreads) {
        const int line = number / kLength, at = number % kLength;
        const bool valid = line < lines && at < length;
        simt::CopyAsync<4>(tile + line * kPitch + at,
                           valid ? data + line * distance + at * step : data, valid);
      }
      return;
    }
  }
  constexpr int kBatch = 4;  // loads under way
  static_assert(kLines * kLength % (kBatch * kThreads) == 0);
  for (int first = thread; first < kLines * kLength; first += kBatch * kThreads) {
    T values[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int number = first + i * kThreads, line = number / kLength, at = number % kLength;
      values[i] = line < lines && at < length ? LoadAs<T>(dtype, from, line * distance + at * step)
                                              : static_cast<T>(0.0f);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int number = first + i * kThreads, line = number / kLength, at = number % kLength;
      tile[line * kPitch + at] = values[i];
    }
  }
}

template <class S>
SIMT_FN void LoadTile(const TileSource& s, const unsigned char* from, int count,
                      typename S::T* tile) {
  using T = typename S::T;
  if (s.along_k) {
    LoadLines<T, S::kSize, S::kK, S::kPitchK, S::kThreads>(s, from, s.outer, count, tile);
  } else {
    LoadLines<T, S::kK, S::kSize, S::kPitch, S::kThreads>(s, from, count, s.outer, tile);
  }
}

// The part of a tile's result that one warp sums: float sums[kRowTiles][kColumnTiles][4] a lane, in
// the layout of simt::Mma.
template <class S>
class WarpTile {
 public:
  using T = typename S::T;

  // `rows` and `columns` of the block's tile lie in the result.
  SIMT_FN WarpTile(bool a_along_k, bool b_along_k, int rows, int columns)
      : a_outer_(a_along_k ? S::kPitchK : 1),
        a_k_(a_along_k ? 1 : S::kPitch),
        b_outer_(b_along_k ? S::kPitchK : 1),
        b_k_(b_along_k ? 1 : S::kPitch) {
    row_tiles_ = columns <= FirstColumn() ? 0 : (rows - FirstRow() + 15) / 16;
    const int lane = Lane(), i = lane % 8, odd = lane / 8 % 2, upper = lane / 16;
    if constexpr (S::kIs16) {
      // Where this lane points LdMatrix: a line of 8 x 8 matrix lane / 8.
      a_at_ = a_along_k ? (FirstRow() + odd * 8 + i) * S::kPitchK + upper * 8
                        : (upper * 8 + i) * S::kPitch + FirstRow() + odd * 8;
      b_at_ = b_along_k ? (FirstColumn() + upper * 8 + i) * S::kPitchK + odd * 8
                        : (odd * 8 + i) * S::kPitch + FirstColumn() + upper * 8;
    } else {
      a_at_ = (FirstRow() + lane / 4) * a_outer_ + lane % 4 * a_k_;
      b_at_ = (FirstColumn() + lane / 4) * b_outer_ + lane % 4 * b_k_;
    }
  }

  // The place of sums[row_tile][column_tile][i] in the block's tile.
  SIMT_FN static int Row(int row_tile, int i) {
    return FirstRow() + row_tile * 16 + Lane() / 4 + i / 2 * 8;
  }
  SIMT_FN static int Column(int column_tile, int i) {
    return FirstColumn() + column_tile * 8 + Lane() % 4 * 2 + i % 2;
  }

  // sums += A B of the first `count` elements of k of two tiles, by tensor cores.
  SIMT_FN void Add(const T* a, const T* b, int count,
                   float (&sums)[S::kRowTiles][S::kColumnTiles][4]) const {
    if (row_tiles_ <= 0) return;
    if constexpr (S::kIs16) {
#pragma unroll
      for (int k = 0; k < S::kK; k += 16) {
        if (k < count) Add16(a + a_at_ + k * a_k_, b + b_at_ + k * b_k_, sums);
      }
    } else {
      // Unrolled, it would load more ahead than registers hold.
#pragma unroll 1
      for (int k = 0; k < count; k += 8) {
        Add32(a + a_at_ + k * a_k_, b + b_at_ + k * b_k_, sums);
      }
    }
  }

  // The same by multiply-adds in float32, k ascending, of sums of which `which` has a bit.
  SIMT_FN void AddExactly(const float* a, const float* b, int count, uint64_t which,
                          float (&sums)[S::kRowTiles][S::kColumnTiles][4]) const {
    for (int k = 0; k < count; ++k) {
#pragma unroll
      for (int n = 0; n < S::kColumnTiles; ++n) {
        const float right[2] = {b[Column(n, 0) * b_outer_ + k * b_k_],
                                b[Column(n, 1) * b_outer_ + k * b_k_]};
#pragma unroll
        for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float left = a[Row(m, i) * a_outer_ + k * a_k_];
            if (which >> Bit(m, n, i) & 1) sums[m][n][i] = fmaf(left, right[i % 2], sums[m][n][i]);
          }
        }
      }
    }
  }

  // The bits of a mask of sums.
  SIMT_FN static constexpr int Bit(int m, int n, int i) {
    return (m * S::kColumnTiles + n) * 4 + i;
  }
  SIMT_FN static uint64_t NotFinite(const float (&sums)[S::kRowTiles][S::kColumnTiles][4]) {
    uint64_t which = 0;
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < S::kColumnTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const bool is_finite = (__float_as_uint(sums[m][n][i]) & 0x7f800000u) != 0x7f800000u;
          if (!is_finite) which |= uint64_t{1} << Bit(m, n, i);
        }
      }
    }
    return which;
  }

 private:
  SIMT_FN void Add16(const T* a, const T* b,
                     float (&sums)[S::kRowTiles][S::kColumnTiles][4]) const {
    static_assert(S::kColumnTiles % 2 == 0);
    uint32_t right[S::kColumnTiles / 2][4];
#pragma unroll
    for (int n = 0; n < S::kColumnTiles / 2; ++n) {
      Load(right[n], b + n * 16 * b_outer_, /*transposed=*/b_outer_ == 1);
    }
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) {
      if (m >= row_tiles_) break;
      uint32_t left[4];
      Load(left, a + m * 16 * a_outer_, /*transposed=*/a_outer_ == 1);
#pragma unroll
      for (int n = 0; n < S::kColumnTiles; ++n) {
        simt::Mma(T(), sums[m][n], left, right[n / 2][n % 2 * 2], right[n / 2][n % 2 * 2 + 1]);
      }
    }
  }
  SIMT_FN static void Load(uint32_t (&r)[4], const T* line, bool transposed) {
    if (transposed) {
      simt::LdMatrixX4Trans(r, line);
    } else {
      simt::LdMatrixX4(r, line);
    }
  }

  // Small products first: they would be lost in sums of large ones. Tensor cores cut sums off where
  // float32 rounds them, which adds up over k: they sum eight products, and sums of those are
  // float32's.
  SIMT_FN void Add32(const float* a, const float* b,
                     float (&sums)[S::kRowTiles][S::kColumnTiles][4]) const {
    uint32_t high[S::kColumnTiles][2], low[S::kColumnTiles][2];
#pragma unroll
    for (int n = 0; n < S::kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        simt::SplitTf32(b[n * 8 * b_outer_ + i * 4 * b_k_], &high[n][i], &low[n][i]);
      }
    }
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) {
      if (m >= row_tiles_) break;
      uint32_t left[4], left_low[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        simt::SplitTf32(a[(m * 16 + i % 2 * 8) * a_outer_ + i / 2 * 4 * a_k_], &left[i],
                        &left_low[i]);
      }
      float eight[S::kColumnTiles][4] = {};
#pragma unroll
      for (int n = 0; n < S::kColumnTiles; ++n) {
        simt::MmaTf32(eight[n], left_low, high[n][0], high[n][1]);
      }
#pragma unroll
      for (int n = 0; n < S::kColumnTiles; ++n) {
        simt::MmaTf32(eight[n], left, low[n][0], low[n][1]);
      }
#pragma unroll
      for (int n = 0; n < S::kColumnTiles; ++n) {
        simt::MmaTf32(eight[n], left, high[n][0], high[n][1]);
      }
#pragma unroll
      for (int n = 0; n < S::kColumnTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[m][n][i] += eight[n][i];
      }
    }
  }

  SIMT_FN static int Lane() { return static_cast<int>(threadIdx.x) % simt::kWarp; }
  SIMT_FN static int FirstRow() {
    return static_cast<int>(threadIdx.x) / simt::kWarp / S::kWarpsAcross * S::kWarpRows;
  }
  SIMT_FN static int FirstColumn() {
    return static_cast<int>(threadIdx.x) / simt::kWarp % S::kWarpsAcross * S::kWarpColumns;
  }

  // Distances of rows or columns and of k, in tiles of a and b; where this lane starts in them.
  const int a_outer_, a_k_, b_outer_, b_k_;
  int a_at_, b_at_;
  int row_tiles_;  // that lie in the result
};

}  // namespace attnd::cuda
