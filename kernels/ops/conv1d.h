// conv1d: convolution along the rows.
//
//   out[c, o] = bias[o] + sum_{i, t} weight[o, i, t] x[c stride + t dilation, i]
//
// Rows outside x read as 0. Conv1d is a product with an unfolded view (Ops::Unfold, MatMul); the
// depthwise form is a primitive of its own (kernels/device/depthwise_conv.h).
#pragma once

#include <cstdint>
#include <vector>

namespace attnd {

struct Conv1dParams {
  int64_t stride = 1, dilation = 1;  // >= 1
  // Rows of out, per problem or one for all. Empty: as many as read no row outside x.
  std::vector<int64_t> columns;
};

}  // namespace attnd
