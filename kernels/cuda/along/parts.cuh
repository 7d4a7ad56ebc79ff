// What reduce and softmax know of a stretch of a line, and how stretches are put together.
#pragma once

#include "kernels/cuda/along/row_tile.cuh"
#include "kernels/cuda/element/wide_math.h"
#include "kernels/cuda/launch.h"
#include "kernels/device/reduce.h"

namespace attnd::cuda {

// A sum. A maximum. Log sum exp: the maximum and sum e^(x - maximum). Arg max: the maximum and its
// index.
struct Part {
  double a, b;
};

SIMT_FN Part Shuffled(const Part& x, int flip) {
  return {Shuffled(x.a, flip), Shuffled(x.b, flip)};
}

// NaN if one is.
SIMT_FN float Larger(float a, float b) { return b > a || b != b ? b : a; }

SIMT_FN bool IsFinite(double x) { return fabs(x) < INFINITY; }

// s comes before t.
SIMT_FN Part Merge(ReduceOp op, const Part& s, const Part& t) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMean:
      return {s.a + t.a, 0};
    case ReduceOp::kMax:
      return {t.a > s.a || t.a != t.a ? t.a : s.a, 0};
    case ReduceOp::kLogSumExp: {
      const double most = t.a > s.a || t.a != t.a ? t.a : s.a;
      // e^(x - most) of infinities: nothing is added to -inf, and +inf says that it was there.
      if (!IsFinite(most)) return {most, s.b + t.b};
      const auto weight = [&](double a) { return wide::Exp(a - most < -700 ? -700 : a - most); };
      return {most, (s.b > 0 ? s.b * weight(s.a) : 0) + (t.b > 0 ? t.b * weight(t.a) : 0)};
    }
    default: {
      const bool is_better = t.a > s.a || (t.a == s.a && t.b < s.b);
      return is_better ? t : s;
    }
  }
}

// Of no elements.
SIMT_FN Part NothingOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMean:
      return {0, 0};
    case ReduceOp::kArgMax:
    case ReduceOp::kArgMaxSigned:
      return {-INFINITY, 4e9};  // beyond every index
    default:
      return {-INFINITY, 0};
  }
}

// The part of a whole line from those of its chunks, in lane 0 of the warp that calls it.
SIMT_FN Part MergedPart(ReduceOp op, const Part* parts, int64_t chunks) {
  Part all = NothingOf(op);
  for (int64_t i = threadIdx.x % simt::kWarp; i < chunks; i += simt::kWarp) {
    all = Merge(op, all, parts[i]);
  }
  for (int flip = simt::kWarp / 2; flip > 0; flip /= 2) {
    all = Merge(op, all, Shuffled(all, flip));
  }
  return all;
}

}  // namespace attnd::cuda
