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

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
constexpr int64_t kLanes = HWY_LANES(float);

// A block of C of kRows x kVectors vectors stays in registers: 16 of 32 (AVX-512) or 12 of 16, the
// rest holds B and the broadcast element. Taller AVX2 blocks spill.
#if HWY_TARGET == HWY_AVX3
constexpr int kRows = 4, kVectors = 4;
#elif HWY_TARGET == HWY_AVX2
constexpr int kRows = 6, kVectors = 2;
#else
constexpr int kRows = 3, kVectors = 4;
#endif

// Floats in a panel, the width that the micro-kernel likes: 64, 16, 16. Operands B and C kept as
// panels ([columns / kPanel][rows][kPanel]) have no power-of-two strides, which would fight for few
// cache sets.
constexpr int64_t kPanel = kVectors * kLanes;
constexpr int64_t RoundUpTo(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// A(i, k) = data[i * row + k * column], in floats.
struct Broadcast {
  const float* data;
  int64_t row, column;
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
enum class Start { kZero, kAdd, kScale };

namespace gemm_internal {

// One function per block shape, never inlined: two of them in one function make gcc spill.
template <int kM, int kV, Start kStart>
HWY_NOINLINE void Block(int64_t K, Broadcast a, Rows b, MutableRows c, const float* scale) {
  const DF d;
  VF acc[kM][kV];
#pragma GCC unroll 8
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kV; ++j) {
      acc[i][j] = hn::Zero(d);
      if constexpr (kStart != Start::kZero) {
        acc[i][j] = hn::LoadU(d, c.data + i * c.stride + j * kLanes);
      }
      if constexpr (kStart == Start::kScale) {
        acc[i][j] = hn::Mul(acc[i][j], hn::LoadU(d, scale + j * kLanes));
      }
    }
  }
  // Rows are addressed in threes from one pointer: (p, p + row, p + 2 row) are x86 address modes.
  constexpr int kBases = (kM + 2) / 3;
  const float* base[kBases];
#pragma GCC unroll 8
  for (int i = 0; i < kBases; ++i) base[i] = a.data + 3 * i * a.row;
  const float* b_row = b.data;
  for (int64_t k = 0; k < K; ++k) {
    VF row[kV];
#pragma GCC unroll 8
    for (int j = 0; j < kV; ++j) row[j] = hn::LoadU(d, b_row + j * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kM; ++i) {
      const VF element = hn::Set(d, base[i / 3][(i % 3) * a.row]);
#pragma GCC unroll 8
      for (int j = 0; j < kV; ++j) acc[i][j] = hn::MulAdd(element, row[j], acc[i][j]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kBases; ++i) base[i] += a.column;
    b_row += b.stride;
  }
#pragma GCC unroll 8
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kV; ++j) hn::StoreU(acc[i][j], d, c.data + i * c.stride + j * kLanes);
  }
}

template <int kV, Start kStart>
HWY_INLINE void Columns(int64_t M, int64_t K, Broadcast a, Rows b, MutableRows c,
                        const float* scale) {
  int64_t m = 0;
  const auto next = [&](int64_t rows) {
    m += rows;
    a.data += rows * a.row;
    c.data += rows * c.stride;
  };
  for (; m + kRows <= M; next(kRows)) Block<kRows, kV, kStart>(K, a, b, c, scale);
  if constexpr (kRows > 4) {
    for (; m + 4 <= M; next(4)) Block<4, kV, kStart>(K, a, b, c, scale);
  }
  for (; m + 2 <= M; next(2)) Block<2, kV, kStart>(K, a, b, c, scale);
  for (; m < M; next(1)) Block<1, kV, kStart>(K, a, b, c, scale);
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

// As Gemm with B and C kept as panels: panel p of B at b + p * b_panel, its rows kPanel apart; C
// likewise. `scale` runs over all columns. REQUIRES: whole panels.
template <Start kStart>
HWY_INLINE void PanelGemm(int64_t M, int64_t panels, int64_t K, Broadcast a, const float* b,
                          int64_t b_panel, float* c, int64_t c_panel,
                          const float* scale = nullptr) {
  for (int64_t p = 0; p < panels; ++p) {
    gemm_internal::Columns<kVectors, kStart>(M, K, a, {b + p * b_panel, kPanel},
                                             {c + p * c_panel, kPanel},
                                             kStart == Start::kScale ? scale + p * kPanel : scale);
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
