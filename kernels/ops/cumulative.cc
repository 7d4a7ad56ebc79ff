// Ops::Cumulative and its gradient rules.
#include <limits>

#include "kernels/ops/ops.h"

namespace attnd {
namespace {

// Not recorded. `reset` may be empty.
Tensor Computed(Ops& ops, const CumulativeArgs& how, const Tensor& x, const Tensor& reset) {
  bool fits = true;
  for (size_t p = 0; fits && p < x.size(); ++p) {
    fits = IsFloat(x[p].dtype) && 0 <= how.axis && how.axis < x[p].shape.rank;
  }
  if (!ops.Require(fits, "cumulative", "x must have the axis and a float dtype")) return {};
  const Tensor out = ops.Empty(DType::kF32, ShapesOf(x));
  if (!ops.status().ok()) return {};
  std::vector<CumulativeProblem> problems;
  for (size_t p = 0; p < x.size(); ++p) problems.push_back({x[p], out[p], ViewOf(reset, p)});
  CumulativeArgs args = how;
  args.problems = problems;
  ops.Run(args);
  return ops.status().ok() ? out : Tensor();
}

// Every element that raised the maximum gets the gradients of the stretch in which it held.
Tensor GradientOfMax(Ops& ops, const CumulativeArgs& how, const Tensor& x, const Tensor& grad) {
  CumulativeArgs before = how, back = how;
  before.exclusive = true;
  back.op = CumulativeOp::kSum;
  back.reverse = !how.reverse;
  const Tensor raises = ops.Apply(ElementOp::kGreater, x, Computed(ops, before, x, {}));
  return ops.Select(raises, Computed(ops, back, grad, raises), NumberLike(ops, 0, x));
}

// dx_i = sum over j that see i of g_j e^(x_i - c_j). e^x_i and e^-c_j may overflow where their
// product does not, so the sum runs as log sum exp of log |g_j| - c_j, for either sign of g.
Tensor GradientOfLogSumExp(Ops& ops, const CumulativeArgs& how, const Tensor& x, const Tensor& c,
                           const Tensor& grad) {
  const Tensor least = NumberLike(ops, -std::numeric_limits<float>::infinity(), x);
  // c = -inf: all elements up to this one are -inf and have no gradient.
  const Tensor sees = ops.Apply(ElementOp::kGreater, c, least);
  const auto part = [&](const Tensor& g) {
    const Tensor log = ops.Apply(ElementOp::kLog, ops.Apply(ElementOp::kRelu, g));
    const Tensor term = ops.Select(sees, ops.Apply(ElementOp::kSubtract, log, c), least);
    const Tensor sum =
        ops.Cumulative(CumulativeOp::kLogSumExp, term, how.axis, how.exclusive, !how.reverse);
    return ops.Apply(ElementOp::kExp, ops.Apply(ElementOp::kAdd, x, sum));
  };
  return ops.Apply(ElementOp::kSubtract, part(grad), part(ops.Affine(grad, -1)));
}

}  // namespace

Tensor Ops::Cumulative(CumulativeOp op, const Tensor& x, int axis, bool exclusive, bool reverse) {
  if (!Require(!x.empty(), "cumulative", "x must not be empty")) return {};
  const CumulativeArgs how = {
      .op = op, .axis = AxisOf(axis, x[0].shape.rank), .exclusive = exclusive, .reverse = reverse};
  const Tensor out = Computed(*this, how, x, {});
  if (!status_.ok() || !Records({&x})) return out;
  tape_->Record(
      {x}, {out},
      [how, x, out](Ops& ops, std::span<const Tensor> grads,
                    const std::vector<bool>&) -> std::vector<Tensor> {
        switch (how.op) {
          case CumulativeOp::kMax:
            return {GradientOfMax(ops, how, x, grads[0])};
          case CumulativeOp::kLogSumExp:
            return {GradientOfLogSumExp(ops, how, x, out, grads[0])};
          default:
            return {ops.Cumulative(how.op, grads[0], how.axis, how.exclusive, !how.reverse)};
        }
      });
  return out;
}

}  // namespace attnd
