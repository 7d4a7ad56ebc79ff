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

Tensor Composed(Ops& ops, const Tensor& x, const FeatureRows& features) {
  const Tensor phi = features.nu > 0 ? Dpfp(ops, x, features.nu) : ops.Apply(features.map, x);
  if (features.norm == RowNorm::kNone) return phi;
  if (features.norm == RowNorm::kSum) {
    return ops.Apply(ElementOp::kSafeDivide, phi, ops.Reduce(ReduceOp::kSum, phi, /*axis=*/-1));
  }
  const Tensor squares =
      ops.Reduce(ReduceOp::kSum, ops.Apply(ElementOp::kSquare, phi), /*axis=*/-1);
  if (!ops.status().ok()) return {};
  // A root of 0 would have an infinite gradient.
  const Tensor sum = ops.Affine(squares, 1, features.eps);
  const Tensor zero = NumberLike(ops, 0, sum), one = NumberLike(ops, 1, sum);
  const Tensor is_zero = ops.Apply(ElementOp::kEqual, sum, zero);
  const Tensor root = ops.Apply(ElementOp::kSqrt, ops.Select(is_zero, one, sum));
  const Tensor norm = ops.Affine(ops.Select(is_zero, zero, root), 1, features.offset);
  return ops.Apply(ElementOp::kSafeDivide, phi, norm);
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
              features.map != ElementOp::kAffine &&
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
