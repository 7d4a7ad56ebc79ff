// matmul: batched products of strided matrices.
//
//   out[.., m, n] = activation(alpha sum_k a[.., m, k] b[.., k, n] + bias) * multiply
//
// Leading dimensions broadcast (1 repeats). Where `out` has 1 and a or b has more, the product is
// summed over that dimension too, in ascending order: gradients of shared weights. Sums are
// float32, in an order that depends on M, N, K and the summed dimensions alone, never on the batch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/core/view.h"
#include "kernels/device/elementwise.h"

namespace attnd {

// Ranks equal, 2..kMaxRank. Any float dtypes and strides (a transpose is a view). K = 0: the sum is
// 0; M or N = 0: nothing happens.
struct MatMulProblem {
  View a, b;
  View bias;      // not given(): 0. Broadcasts to out
  View multiply;  // not given(): 1. Broadcasts to out
  View out;
};

struct MatMulArgs {
  double alpha = 1;
  std::optional<ElementOp> activation;  // one of the unary operations
  std::vector<MatMulProblem> problems;
};

// For ForEachView of launch.h.
template <class F>
void ForEachView(const MatMulProblem& p, const F& f) {
  for (const View* view : {&p.a, &p.b, &p.bias, &p.multiply, &p.out}) f(*view);
}

}  // namespace attnd
