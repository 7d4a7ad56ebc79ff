#include "kernels/ops/feature_map.h"

#include <vector>

#include "kernels/ops/ops.h"

namespace attnd {
namespace {

// --- of other primitives, with their gradients

Tensor Dpfp(Ops& ops, const Tensor& x, int64_t nu) {
  const Tensor r =
      ops.Concat({ops.Apply(ElementOp::kRelu, x), ops.Apply(ElementOp::kRelu, ops.Affine(x, -1))},
                 /*axis=*/-1);
  // Twice r in a row holds every rotation of r as a slice.
  const Tensor twice = ops.Concat({r, r}, -1);
  std::vector<Tensor> blocks;
  for (int64_t j = 1; j <= nu && ops.status().ok(); ++j) {
    std::vector<int64_t> begin, end;
    for (size_t p = 0; p < r.size(); ++p) {
      const int64_t width = r[p].shape[r[p].shape.rank - 1];
      begin.push_back(width - (width == 0 ? 0 : j % width));
      end.push_back(begin.back() + width);
    }
    blocks.push_back(ops.Apply(ElementOp::kMultiply, r, ops.Slice(twice, -1, begin, end)));
  }
  return ops.Concat(blocks, -1);
}

// phi over max(sqrt(sum of squares + eps), floor) + offset. All over the largest element where that
// is above 1, whose square may leave float32.
Tensor OverRoot(Ops& ops, const Tensor& phi, const FeatureRows& features) {
  const Tensor sizes = ops.Apply(ElementOp::kAbs, ops.Stop(phi));
  const Tensor largest = ops.Reduce(ReduceOp::kMax, sizes, /*axis=*/-1);
  if (!ops.status().ok()) return {};
  const auto number = [&](double x) { return NumberLike(ops, static_cast<float>(x), largest); };
  const Tensor unit = ops.Apply(ElementOp::kMaximum, largest, number(1));
  const auto over_unit = [&](const Tensor& x) { return ops.Apply(ElementOp::kDivide, x, unit); };
  const Tensor scaled = over_unit(phi);
  const Tensor squares = ops.Reduce(ReduceOp::kSum, ops.Apply(ElementOp::kSquare, scaled), -1);
  const Tensor sum =
      ops.Apply(ElementOp::kAdd, squares, over_unit(over_unit(number(features.eps))));
  if (!ops.status().ok()) return {};
  // A root of 0 would have an infinite gradient.
  const Tensor is_zero = ops.Apply(ElementOp::kEqual, sum, number(0));
  const Tensor root = ops.Apply(ElementOp::kSqrt, ops.Select(is_zero, number(1), sum));
  const Tensor least = over_unit(number(features.floor));
  const Tensor is_low = ops.Apply(ElementOp::kGreater, least, ops.Stop(root));
  const Tensor norm = ops.Select(is_zero, least, ops.Select(is_low, least, root));
  const Tensor all = ops.Apply(ElementOp::kAdd, norm, over_unit(number(features.offset)));
  return ops.Apply(ElementOp::kSafeDivide, scaled, all);
}

Tensor Composed(Ops& ops, const Tensor& x, const FeatureRows& features) {
  const Tensor phi = features.nu > 0 ? Dpfp(ops, x, features.nu) : ops.Apply(features.map, x);
  if (features.norm == RowNorm::kNone) return phi;
  if (features.norm == RowNorm::kSum) {
    return ops.Apply(ElementOp::kSafeDivide, phi, ops.Reduce(ReduceOp::kSum, phi, /*axis=*/-1));
  }
  return OverRoot(ops, phi, features);
}

// --- in one launch

// Features of x or, with dout, the gradient of x.
Tensor Launched(Ops& ops, const Tensor& x, const FeatureRows& features, const Tensor& dout) {
  std::vector<Shape> shapes = ShapesOf(x);
  for (Shape& shape : shapes) {
    int64_t& last = shape.dims[shape.rank - 1];
    if (dout.empty()) last = features.Features(last);
  }
  const Tensor out = ops.Empty(DType::kF32, shapes);
  if (!ops.status().ok()) return {};
  std::vector<FeatureRowsProblem> problems;
  for (size_t p = 0; p < x.size(); ++p) problems.push_back({x[p], ViewOf(dout, p), out[p]});
  ops.Run(FeatureRowsArgs{
      .features = features, .derivative = !dout.empty(), .problems = std::move(problems)});
  return ops.status().ok() ? out : Tensor();
}

}  // namespace

Tensor FeaturesOf(Ops& ops, const Tensor& x, const FeatureRows& features) {
  bool fits = !x.empty() && features.nu >= 0 && features.eps >= 0 && Operands(features.map) == 1 &&
              features.map != ElementOp::kAffine && features.floor >= 0 &&
              (features.norm == RowNorm::kL2 ? features.offset >= 0 : features.offset == 0);
  for (size_t p = 0; fits && p < x.size(); ++p) {
    fits = IsFloat(x[p].dtype) && x[p].shape.rank > 0;
  }
  if (!ops.Require(fits, "feature_rows", "x must have a float dtype, map one operand")) return {};
  if (ops.Declines(FeatureRowsArgs())) return Composed(ops, x, features);
  const Tensor out = Launched(ops, x, features, {});
  if (!ops.status().ok() || !ops.Records({&x})) return out;
  ops.tape()->Record({x}, {out},
                     [x, features](Ops& o, std::span<const Tensor> grads, const std::vector<bool>&)
                         -> std::vector<Tensor> { return {Launched(o, x, features, grads[0])}; });
  return out;
}

}  // namespace attnd
