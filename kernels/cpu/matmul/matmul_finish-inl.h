// What follows a sum: its chunks added up; factor, bias, activation, multiply; storage.
#if defined(ATTND_CPU_MATMUL_FINISH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_MATMUL_FINISH_INL_H_
#undef ATTND_CPU_MATMUL_FINISH_INL_H_
#else
#define ATTND_CPU_MATMUL_FINISH_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <utility>

#include "hwy/highway.h"
#include "kernels/cpu/element/element-inl.h"
#include "kernels/cpu/matmul/matmul_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

// C += the chunks that follow it in memory, in whole vectors.
HWY_MAYBE_UNUSED static void AddChunks(const MatMulTiling& tiling, int64_t rows, int64_t columns,
                                       MutableRows c) {
  const DF d;
  for (int64_t chunk = 1; chunk < tiling.chunks; ++chunk) {
    for (int64_t m = 0; m < rows; ++m) {
      float* to = c.data + m * c.stride;
      const float* from = to + chunk * tiling.c_floats();
      for (int64_t n = 0; n < columns; n += kLanes) {
        hn::StoreU(hn::Add(hn::LoadU(d, to + n), hn::LoadU(d, from + n)), d, to + n);
      }
    }
  }
}

// The operands that the sums of a tile are combined with; each side's data points to the tile's
// first element.
struct TileSides {
  MatMulSide bias, multiply, out;
};

// Row m of a side as floats; an element that repeats is repeated.
HWY_MAYBE_UNUSED static const float* SideRow(const MatMulSide& side, int64_t m, int64_t n,
                                             float* to) {
  const char* from = side.At(m * side.row);
  if (side.column == 1 && side.dtype == DType::kF32) return reinterpret_cast<const float*>(from);
  if (side.column == 0) {
    ReadStrided(side.dtype, from, 1, 1, to);
    std::fill(to + 1, to + n, to[0]);
  } else {
    ReadStrided(side.dtype, from, side.column, n, to);
  }
  return to;
}

// x[n] = x[n] * factor + term[n], then * times[n]; null: 0 and 1.
HWY_MAYBE_UNUSED static void MapRow(int64_t n, float factor, const float* term, const float* times,
                                    float* x) {
  const DF d;
  const VF alpha = hn::Set(d, factor);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    VF value = hn::Mul(hn::LoadU(d, x + i), alpha);
    if (term != nullptr) value = hn::Add(value, hn::LoadU(d, term + i));
    if (times != nullptr) value = hn::Mul(value, hn::LoadU(d, times + i));
    hn::StoreU(value, d, x + i);
  }
  for (; i < n; ++i) {
    x[i] *= factor;
    if (term != nullptr) x[i] += term[i];
    if (times != nullptr) x[i] *= times[i];
  }
}

HWY_MAYBE_UNUSED static void FinishRow(const MatMulArgs& args, int64_t n, const float* bias,
                                       const float* multiply, float* x) {
  const float alpha = static_cast<float>(args.alpha);
  if (!args.activation.has_value()) return MapRow(n, alpha, bias, multiply, x);
  MapRow(n, alpha, bias, nullptr, x);
  ElementForward({.op = *args.activation}, {.in = {x}, .out = x, .n = n});
  if (multiply != nullptr) MapRow(n, 1, nullptr, multiply, x);
}

// Stores the tile C [M,N]. `crosses`: the result's contiguous elements run along M. `scratch`: two
// rows, and a transposed tile where it crosses.
HWY_MAYBE_UNUSED static void FinishTile(const MatMulArgs& args, int64_t M, int64_t N, MutableRows c,
                                        bool crosses, TileSides sides, float* scratch) {
  const int64_t longest = std::max(M, N) + MatMulTiling::kGap;
  float *const bias_row = scratch, *const multiply_row = scratch + longest;
  if (crosses) {
    float* const turned = scratch + 2 * longest;
    Transpose(c.data, c.stride, M, N, turned, M + MatMulTiling::kGap);
    c = {turned, M + MatMulTiling::kGap};
    std::swap(M, N);
    for (MatMulSide* side : {&sides.bias, &sides.multiply, &sides.out}) {
      std::swap(side->row, side->column);
    }
  }
  const MatMulSide& out = sides.out;
  for (int64_t m = 0; m < M; ++m) {
    float* const x = c.data + m * c.stride;
    const float* bias = sides.bias.given ? SideRow(sides.bias, m, N, bias_row) : nullptr;
    const float* multiply =
        sides.multiply.given ? SideRow(sides.multiply, m, N, multiply_row) : nullptr;
    FinishRow(args, N, bias, multiply, x);
    if (out.column == 1) {
      Narrow(out.dtype, x, N, out.At(m * out.row));
      continue;
    }
    for (int64_t n = 0; n < N; ++n) {
      Narrow(out.dtype, x + n, 1, out.At(m * out.row + n * out.column));
    }
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
