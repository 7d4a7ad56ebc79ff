// depthwise_conv: convolution along the rows with one weight a head and tap.
//
//   out[n, d] = sum_t weight[t] x[n + t - left, d]
//
// Rows outside x read as 0.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/core/view.h"

namespace attnd {

// x, out [B,H,N,D], float dtypes, last stride 1; weight [H,w] float32 (stride of H may be 0).
struct DepthwiseConvProblem {
  View x, weight, out;
};

// The gradient of weight: dweight [H,w] = sum over b, n, d of dout[n, d] x[n + t - left, d].
struct DepthwiseConvGradProblem {
  View x, dout, dweight;
};

struct DepthwiseConvArgs {
  int64_t left = 0;
  bool flipped = false;  // weight[w - 1 - t] in place of weight[t]: the gradient of x is this
  std::vector<DepthwiseConvProblem> problems;
};

struct DepthwiseConvGradArgs {
  int64_t left = 0;
  std::vector<DepthwiseConvGradProblem> problems;
};

// For ForEachView of launch.h.
template <class F>
void ForEachView(const DepthwiseConvProblem& p, const F& f) {
  f(p.x), f(p.weight), f(p.out);
}
template <class F>
void ForEachView(const DepthwiseConvGradProblem& p, const F& f) {
  f(p.x), f(p.dout), f(p.dweight);
}

}  // namespace attnd
