// Ops::Softmax, LogSoftmax and their gradient rules.
#include <limits>

#include "kernels/ops/composed.h"

namespace attnd {
namespace {

// e^(x - max) / sum, or x - max - log sum. A row of nothing but -inf is shifted by 0.
void Compose(Ops& ops, bool log, const Tensor& x, int axis, const Tensor& out) {
  const Uncounted scope(ops);
  const Tensor zero = NumberLike(ops, 0, x);
  const Tensor most = ops.Reduce(ReduceOp::kMax, x, axis);
  const Tensor least = NumberLike(ops, -std::numeric_limits<float>::infinity(), x);
  const Tensor is_nothing = ops.Apply(ElementOp::kEqual, most, least);
  ApplyInto(ops, ElementOp::kSubtract, out, x, ops.Select(is_nothing, zero, most));
  if (log) {
    const Tensor sum = ops.Reduce(ReduceOp::kSum, ops.Apply(ElementOp::kExp, out), axis);
    const Tensor scale = ops.Select(is_nothing, zero, ops.Apply(ElementOp::kLog, sum));
    ApplyInto(ops, ElementOp::kSubtract, out, out, scale);
  } else {
    ApplyInto(ops, ElementOp::kExp, out, out);
    ApplyInto(ops, ElementOp::kSafeDivide, out, out, ops.Reduce(ReduceOp::kSum, out, axis));
  }
}

Tensor Computed(Ops& ops, bool log, const Tensor& x, int axis) {
  bool fits = true;
  for (size_t p = 0; fits && p < x.size(); ++p) {
    fits = IsFloat(x[p].dtype) && 0 <= axis && axis < x[p].shape.rank;
  }
  if (!ops.Require(fits, "softmax", "x must have the axis and a float dtype")) return {};
  const Tensor out = ops.Empty(DType::kF32, ShapesOf(x));
  if (!ops.status().ok()) return {};
  std::vector<SoftmaxProblem> problems;
  for (size_t p = 0; p < x.size(); ++p) problems.push_back({x[p], out[p]});
  if (!ops.TryRun(SoftmaxArgs{.log = log, .axis = axis, .problems = std::move(problems)})) {
    Compose(ops, log, x, axis, out);
  }
  return ops.status().ok() ? out : Tensor();
}

}  // namespace

Tensor Ops::Softmax(const Tensor& x, int axis) {
  if (!Require(!x.empty(), "softmax", "x must not be empty")) return {};
  const int along = AxisOf(axis, x[0].shape.rank);
  const Tensor y = Computed(*this, /*log=*/false, x, along);
  if (!status_.ok() || !Records({&x})) return y;
  tape_->Record({x}, {y},
                [y, along](Ops& ops, std::span<const Tensor> grads,
                           const std::vector<bool>&) -> std::vector<Tensor> {
                  // dx = y (dy - sum(y dy))
                  const Tensor each = ops.Apply(ElementOp::kMultiply, y, grads[0]);
                  const Tensor sum = ops.Reduce(ReduceOp::kSum, each, along);
                  ApplyInto(ops, ElementOp::kSubtract, each, grads[0], sum);
                  ApplyInto(ops, ElementOp::kMultiply, each, y, each);
                  return {each};
                });
  return y;
}

Tensor Ops::LogSoftmax(const Tensor& x, int axis) {
  if (!Require(!x.empty(), "softmax", "x must not be empty")) return {};
  const int along = AxisOf(axis, x[0].shape.rank);
  const Tensor y = Computed(*this, /*log=*/true, x, along);
  if (!status_.ok() || !Records({&x})) return y;
  tape_->Record({x}, {y},
                [y, along](Ops& ops, std::span<const Tensor> grads,
                           const std::vector<bool>&) -> std::vector<Tensor> {
                  // dx = dy - e^y sum(dy)
                  const Tensor sum = ops.Reduce(ReduceOp::kSum, grads[0], along);
                  const Tensor share = ops.Apply(ElementOp::kExp, y);
                  ApplyInto(ops, ElementOp::kMultiply, share, share, sum);
                  ApplyInto(ops, ElementOp::kSubtract, share, grads[0], share);
                  return {share};
                });
  return y;
}

}  // namespace attnd
