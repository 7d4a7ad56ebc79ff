// reduce, softmax, cumulative: along one axis.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/core/view.h"

namespace attnd {

// Sums run in float32 by blocks of a fixed size whose sums are added pairwise: the order depends on
// the length of the axis and on whether it is dense in memory, the error grows with the logarithm
// of the length.
enum class ReduceOp : uint8_t {
  kSum,
  kMean,          // of nothing: 0
  kMax,           // NaN if there is one; of nothing: -inf
  kLogSumExp,     // of nothing, and of -inf only: -inf
  kArgMax,        // int32: the lowest index of the largest; NaN counts as -inf; of nothing: -1
  kArgMaxSigned,  // the same of the axis followed by its negative: n + i stands for -x_i
};

inline bool IsArgMax(ReduceOp op) {
  return op == ReduceOp::kArgMax || op == ReduceOp::kArgMaxSigned;
}

// x: a float dtype, any strides. out: float32 (of indices int32), as x with 1 in `axis`, any
// strides.
struct ReduceProblem {
  View x, out;
};

struct ReduceArgs {
  ReduceOp op = ReduceOp::kSum;
  int axis = 0;
  std::vector<ReduceProblem> problems;
};

// softmax: out = exp(x - lse); log: out = x - lse, lse over `axis`. A row of nothing but -inf gives
// 0 (log: -inf), one with +inf NaN. out: any float dtype and strides.
struct SoftmaxProblem {
  View x, out;
};

struct SoftmaxArgs {
  bool log = false;
  int axis = 0;
  std::vector<SoftmaxProblem> problems;
};

enum class CumulativeOp : uint8_t { kSum, kMax, kLogSumExp };

// out_i = op of x_0 .. x_i along `axis` (exclusive: .. x_(i-1), of nothing 0, -inf, -inf; reverse:
// x_i .. x_(n-1)). Computed in float64, so that the error does not grow with the length. kMax: NaN
// from the first NaN on. x: a float dtype; any strides.
// kSum with `reset` (float32, of x's shape): where it is not 0 the sum is 0 again after this
// element was added (exclusive: before). Sums of a reversed gradient over the stretches in which a
// running maximum stays the same are its gradient.
struct CumulativeProblem {
  View x, out;  // out float32
  View reset;
};

struct CumulativeArgs {
  CumulativeOp op = CumulativeOp::kSum;
  int axis = 0;
  bool exclusive = false, reverse = false;
  std::vector<CumulativeProblem> problems;
};

// y = (x - mean) / sqrt(var + eps) over the last axis, var with the count as divisor (Ba et al.
// 2016, eq. 3-4; without weight and bias). rstd [.., 1] float32 = 1 / sqrt(var + eps).
// x a float dtype; any strides.
struct LayerNormProblem {
  View x, y, rstd;
};

struct LayerNormArgs {
  double eps = 1e-5;  // > 0
  std::vector<LayerNormProblem> problems;
};

// Its gradient: dx = rstd (dy - mean(dy) - y mean(y dy)), means over the last axis. y and dx
// float32, dense, rstd as above; dy a float dtype, any strides.
struct LayerNormGradProblem {
  View y, rstd, dy, dx;
};

struct LayerNormGradArgs {
  std::vector<LayerNormGradProblem> problems;
};

// For ForEachView of launch.h.
template <class F>
void ForEachView(const ReduceProblem& p, const F& f) {
  f(p.x), f(p.out);
}
template <class F>
void ForEachView(const SoftmaxProblem& p, const F& f) {
  f(p.x), f(p.out);
}
template <class F>
void ForEachView(const CumulativeProblem& p, const F& f) {
  f(p.x), f(p.out), f(p.reset);
}
template <class F>
void ForEachView(const LayerNormProblem& p, const F& f) {
  f(p.x), f(p.y), f(p.rstd);
}
template <class F>
void ForEachView(const LayerNormGradProblem& p, const F& f) {
  f(p.y), f(p.rstd), f(p.dy), f(p.dx);
}

}  // namespace attnd
