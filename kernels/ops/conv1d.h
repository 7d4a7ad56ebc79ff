// conv1d: convolution along the rows. The contract of Ops::Conv1d and DepthwiseConv1d, and of
// Backend::DepthwiseConv.
//
//   conv1d:    out[c, o] = bias[o] + sum_{i, t} weight[o, i, t] x[c stride + t dilation, i]
//   depthwise: out[n, d] = sum_t weight[t] x[n + t - left, d]
//
// Rows outside x read as 0. Conv1d is a product with an unfolded view (Ops::Unfold, MatMul); only
// the depthwise form, one weight a head and tap, is a kernel of its own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/core/view.h"
#include "kernels/ops/tensor.h"

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
  std::span<const DepthwiseConvProblem> problems;
};

struct DepthwiseConvGradArgs {
  int64_t left = 0;
  std::span<const DepthwiseConvGradProblem> problems;
};

struct Conv1dParams {
  int64_t stride = 1, dilation = 1;  // >= 1
  // Rows of out, per problem or one for all. Empty: as many as read no row outside x.
  std::vector<int64_t> columns;
};

}  // namespace attnd
