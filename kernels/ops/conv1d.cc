// Ops::Conv1d, DepthwiseConv1d and their gradient rules.
#include "kernels/ops/ops.h"

namespace attnd {

Tensor Ops::Conv1d(const Tensor&, const Tensor&, const Tensor&, const Conv1dParams&) {
  Require(false, "conv1d", "is not built yet");
  return {};
}

Tensor Ops::DepthwiseConv1d(const Tensor&, const Tensor&, int64_t) {
  Require(false, "depthwise_conv1d", "is not built yet");
  return {};
}

}  // namespace attnd
