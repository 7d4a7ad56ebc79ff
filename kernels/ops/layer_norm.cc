// Ops::LayerNorm and its gradient rule.
#include "kernels/ops/composed.h"

namespace attnd {
namespace {

void Compose(Ops& ops, const Tensor& x, double eps, const Tensor& y, const Tensor& rstd) {
  const Uncounted scope(ops);
  ApplyInto(ops, ElementOp::kSubtract, y, x, ops.Reduce(ReduceOp::kMean, x, -1));
  // Over the largest distance where that is above 1: its square may leave float32.
  const Tensor largest = ops.Reduce(ReduceOp::kMax, ops.Apply(ElementOp::kAbs, y), -1);
  if (!ops.status().ok()) return;
  const auto number = [&](double v) { return NumberLike(ops, static_cast<float>(v), largest); };
  const Tensor unit = ops.Apply(ElementOp::kMaximum, largest, number(1));
  const auto over_unit = [&](const Tensor& v) { return ops.Apply(ElementOp::kDivide, v, unit); };
  const Tensor squares = ops.Apply(ElementOp::kSquare, over_unit(y));
  const Tensor variance = ops.Apply(ElementOp::kAdd, ops.Reduce(ReduceOp::kMean, squares, -1),
                                    over_unit(over_unit(number(eps))));
  const Tensor deviation =
      ops.Apply(ElementOp::kMultiply, ops.Apply(ElementOp::kSqrt, variance), unit);
  ApplyInto(ops, ElementOp::kReciprocal, rstd, deviation);
  ApplyInto(ops, ElementOp::kMultiply, y, y, rstd);
}

void ComposeGrad(Ops& ops, const Tensor& y, const Tensor& rstd, const Tensor& dy,
                 const Tensor& dx) {
  const Uncounted scope(ops);
  const auto mean = [&](const Tensor& x) { return ops.Reduce(ReduceOp::kMean, x, -1); };
  ApplyInto(ops, ElementOp::kMultiply, dx, y, dy);
  ApplyInto(ops, ElementOp::kMultiply, dx, y, mean(dx));
  ApplyInto(ops, ElementOp::kSubtract, dx, dy, dx);
  ApplyInto(ops, ElementOp::kSubtract, dx, dx, mean(dy));
  ApplyInto(ops, ElementOp::kMultiply, dx, dx, rstd);
}

Tensor GradientOf(Ops& ops, const Tensor& y, const Tensor& rstd, const Tensor& dy) {
  const Tensor dx = ops.Empty(DType::kF32, ShapesOf(y));
  if (!ops.status().ok()) return {};
  std::vector<LayerNormGradProblem> problems;
  for (size_t p = 0; p < y.size(); ++p) problems.push_back({y[p], rstd[p], dy[p], dx[p]});
  if (!ops.TryRun(LayerNormGradArgs{.problems = std::move(problems)})) {
    ComposeGrad(ops, y, rstd, dy, dx);
  }
  return ops.status().ok() ? dx : Tensor();
}

}  // namespace

Tensor Ops::LayerNorm(const Tensor& x, double eps, const Tensor& weight, const Tensor& bias) {
  bool fits = !x.empty() && eps > 0;
  for (size_t p = 0; fits && p < x.size(); ++p) {
    fits = IsFloat(x[p].dtype) && x[p].shape.rank > 0;
  }
  if (!Require(fits, "layer_norm", "x must have a float dtype, eps must be > 0")) return {};
  std::vector<Shape> rows = ShapesOf(x);
  for (Shape& shape : rows) shape.dims[shape.rank - 1] = 1;
  const Tensor y = Empty(DType::kF32, ShapesOf(x)), rstd = Empty(DType::kF32, rows);
  if (!status_.ok()) return {};
  std::vector<LayerNormProblem> problems;
  for (size_t p = 0; p < x.size(); ++p) problems.push_back({x[p], y[p], rstd[p]});
  if (!TryRun(LayerNormArgs{.eps = eps, .problems = std::move(problems)})) {
    Compose(*this, x, eps, y, rstd);
  }
  if (!status_.ok()) return {};
  if (Records({&x})) {
    tape_->Record({x}, {y},
                  [y, rstd](Ops& ops, std::span<const Tensor> grads, const std::vector<bool>&)
                      -> std::vector<Tensor> { return {GradientOf(ops, y, rstd, grads[0])}; });
  }
  const Tensor scaled = weight.empty() ? y : Apply(ElementOp::kMultiply, y, weight);
  return bias.empty() ? scaled : Apply(ElementOp::kAdd, scaled, bias);
}

}  // namespace attnd
