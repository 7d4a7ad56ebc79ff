// The micro-kernel of all CPU primitives: C (+)= A B with A read one element at a time (any two
// strides, so no operand is ever transposed for it) and B, C in rows of whole vectors.
#if defined(ATTND_CPU_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_GEMM_INL_H_
#undef ATTND_CPU_GEMM_INL_H_
#else
#define ATTND_CPU_GEMM_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "kernels/core/integer.h"

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
constexpr int64_t kLanes = HWY_LANES(float);

// A block of C of kRows x kVectors vectors stays in registers: 16 of 32 (AVX-512) or 12 of 16, the
// rest holds a row of B and an element of A, or the reverse. AVX-512: 4 x 4 runs at 93-99 % of the
// multiply-add peak on tiles of 64 to 256 rows and K of 64 to 512; 6 x 4, 8 x 2 and 4 x 6 differ by
// less than the noise, and a panel of 64 columns is a tile of queries. 12 registers: 3 x 4 takes 7
// loads for 12 multiply-adds; 6 x 2 takes 8 and more instructions around them: as fast on a quiet
// machine, 15 % slower on one with busy neighbours, which leave a hyperthread fewer instructions a
// cycle but not fewer multiply-adds.
#if HWY_TARGET == HWY_AVX3
constexpr int kRows = 4, kVectors = 4;
#else
constexpr int kRows = 3, kVectors = 4;
#endif

// Floats in a panel, the width at which the micro-kernel is fastest: 64, 32, 16. Operands B and C
// kept as panels ([columns / kPanel][rows][kPanel]) have no power-of-two strides, which would fight
// for few cache sets.
constexpr int64_t kPanel = kVectors * kLanes;
// Half a panel, the least width at which the micro-kernel loses nothing.
constexpr int64_t kStrip = 2 * kLanes, kStrips = kPanel / kStrip;

// A(i, k) = data[i * row + k * column], in floats. With `group`, kRows rows at a time are packed:
// A(i, k) = data[i / kRows * group + i % kRows * row + k * column].
struct Broadcast {
  const float* data;
  int64_t row, column;
  int64_t group = kRows * row;

  // From column k on.
  Broadcast From(int64_t k) const { return {data + k * column, row, column, group}; }
};
// Row r starts at data + r * stride. Any alignment; 64 bytes is best.
struct Rows {
  const float* data;
  int64_t stride;
};
struct MutableRows {
  float* data;
  int64_t stride;
};

// What C holds before the sum: zero, itself, or itself times `scale[n]`, one factor a column.
// kAddLast: zero, and itself is added last, so that adding a large C rounds once instead of K
// times.
enum class Start { kZero, kAdd, kScale, kAddLast };

namespace gemm_internal {

// One function per block shape, never inlined: two of them in one function make gcc spill. A comes
// in pieces, since a struct of three words would travel through memory. a_group: where kM > kRows.
template <int kM, int kV, Start kStart>
HWY_NOINLINE void Block(int64_t K, const float* a, int64_t a_row, int64_t a_column, Rows b,
                        MutableRows c, const float* scale, int64_t a_group = 0) {
  const DF d;
  VF acc[kM][kV];
#pragma GCC unroll 8
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kV; ++j) {
      acc[i][j] = hn::Zero(d);
      if constexpr (kStart == Start::kAdd || kStart == Start::kScale) {
        acc[i][j] = hn::LoadU(d, c.data + i * c.stride + j * kLanes);
      }
      if constexpr (kStart == Start::kScale) {
        acc[i][j] = hn::Mul(acc[i][j], hn::LoadU(d, scale + j * kLanes));
      }
    }
  }
  // Rows are addressed in threes from one pointer: (p, p + row, p + 2 row) are x86 address modes.
  // Those of two groups from two.
  constexpr bool kGroups = kM > kRows;
  constexpr int kEach = kGroups ? kRows : 3, kBases = CeilDiv(kM, kEach);
  const float* base[kBases];
#pragma GCC unroll 8
  for (int i = 0; i < kBases; ++i) base[i] = a + i * (kGroups ? a_group : 3 * a_row);
  // The shorter of the two stays in registers while the longer is read. If they are equal, a row of
  // B does, in vectors that lie side by side, while elements of A come from as many lines.
  const auto add = [&](const float* b_row) HWY_ATTR {
    VF element[kM], row[kV];
#pragma GCC unroll 8
    for (int i = 0; kM < kV && i < kM; ++i) {
      element[i] = hn::Set(d, base[i / kEach][(i % kEach) * a_row]);
    }
#pragma GCC unroll 8
    for (int j = 0; j < kV; ++j) {
      row[j] = hn::LoadU(d, b_row + j * kLanes);
#pragma GCC unroll 8
      for (int i = 0; kM < kV && i < kM; ++i) {
        acc[i][j] = hn::MulAdd(element[i], row[j], acc[i][j]);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; kM >= kV && i < kM; ++i) {
      element[i] = hn::Set(d, base[i / kEach][(i % kEach) * a_row]);
#pragma GCC unroll 8
      for (int j = 0; j < kV; ++j) acc[i][j] = hn::MulAdd(element[i], row[j], acc[i][j]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kBases; ++i) base[i] += a_column;
  };
  const float* b_row = b.data;
  int64_t k = K;
  for (; k >= 2; k -= 2) {
    add(b_row);
    add(b_row + b.stride);
    b_row += 2 * b.stride;
  }
  if (k > 0) add(b_row);
#pragma GCC unroll 8
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kV; ++j) {
      float* to = c.data + i * c.stride + j * kLanes;
      if constexpr (kStart == Start::kAddLast) acc[i][j] = hn::Add(hn::LoadU(d, to), acc[i][j]);
      hn::StoreU(acc[i][j], d, to);
    }
  }
}

template <int kV, Start kStart>
HWY_INLINE void Columns(int64_t M, int64_t K, Broadcast a, Rows b, MutableRows c,
                        const float* scale) {
  int64_t m = 0;
  const auto next = [&](int64_t rows, int64_t step) {
    m += rows;
    a.data += step;
    c.data += rows * c.stride;
  };
  // 8 independent sums hide the latency of a multiply-add.
  constexpr int kTall = kV == kVectors ? kRows : 2 * kRows;
  for (; m + kTall <= M; next(kTall, kTall / kRows * a.group)) {
    Block<kTall, kV, kStart>(K, a.data, a.row, a.column, b, c, scale, a.group);
  }
  for (; kTall > kRows && m + kRows <= M; next(kRows, a.group)) {
    Block<kRows, kV, kStart>(K, a.data, a.row, a.column, b, c, scale);
  }
  for (; m + 2 <= M; next(2, 2 * a.row))
    Block<2, kV, kStart>(K, a.data, a.row, a.column, b, c, scale);
  for (; m < M; next(1, a.row)) Block<1, kV, kStart>(K, a.data, a.row, a.column, b, c, scale);
}

}  // namespace gemm_internal

// C[m][n] = start + sum_k A(m, k) B[k][n] for m < M, n < N, summed over k in ascending order, one
// rounding a step with FMA. REQUIRES: N is a multiple of kLanes. `scale` (N floats) only with
// kScale. M, N, K may be 0; with K = 0 C becomes its start.
template <Start kStart>
HWY_INLINE void Gemm(int64_t M, int64_t N, int64_t K, Broadcast a, Rows b, MutableRows c,
                     const float* scale = nullptr) {
  using gemm_internal::Columns;
  int64_t n = 0;
  const auto next = [&](int64_t columns) {
    n += columns;
    b.data += columns;
    c.data += columns;
    if (kStart == Start::kScale) scale += columns;
  };
  for (; n + kPanel <= N; next(kPanel)) Columns<kVectors, kStart>(M, K, a, b, c, scale);
  if constexpr (kVectors > 2) {
    for (; n + 2 * kLanes <= N; next(2 * kLanes)) Columns<2, kStart>(M, K, a, b, c, scale);
  }
  for (; n + kLanes <= N; next(kLanes)) Columns<1, kStart>(M, K, a, b, c, scale);
}

// As Gemm for the kPanel columns of one panel: rows of B and C kPanel apart.
template <Start kStart>
HWY_INLINE void PanelGemm(int64_t M, int64_t K, Broadcast a, const float* b, float* c,
                          const float* scale = nullptr) {
  gemm_internal::Columns<kVectors, kStart>(M, K, a, {b, kPanel}, {c, kPanel}, scale);
}
// Of `lanes` columns of a panel, from `b` and `c` on.
template <Start kStart>
HWY_INLINE void PanelGemm(int64_t M, int64_t lanes, int64_t K, Broadcast a, const float* b,
                          float* c, const float* scale = nullptr) {
  if (lanes == kPanel) {
    PanelGemm<kStart>(M, K, a, b, c, scale);
  } else {
    Gemm<kStart>(M, lanes, K, a, {b, kPanel}, {c, kPanel}, scale);
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
