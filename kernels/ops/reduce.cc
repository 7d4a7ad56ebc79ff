// Ops along an axis, and their gradient rules.
#include "kernels/ops/ops.h"

namespace attnd {

Tensor Ops::Reduce(ReduceOp, const Tensor&, int) {
  Require(false, "reduce", "is not built yet");
  return {};
}

Tensor Ops::SumTo(const Tensor&, const std::vector<Shape>&) {
  Require(false, "sum_to", "is not built yet");
  return {};
}

Tensor Ops::Softmax(const Tensor&, int) {
  Require(false, "softmax", "is not built yet");
  return {};
}

Tensor Ops::LogSoftmax(const Tensor&, int) {
  Require(false, "log_softmax", "is not built yet");
  return {};
}

Tensor Ops::Cumulative(CumulativeOp, const Tensor&, int, bool, bool) {
  Require(false, "cumulative", "is not built yet");
  return {};
}

Tensor Ops::LayerNorm(const Tensor&, double, const Tensor&, const Tensor&) {
  Require(false, "layer_norm", "is not built yet");
  return {};
}

Tensor Ops::ArgMax(const Tensor&) {
  Require(false, "argmax", "is not built yet");
  return {};
}

}  // namespace attnd
