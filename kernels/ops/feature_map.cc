#include "kernels/ops/feature_map.h"

#include <vector>

#include "kernels/ops/ops.h"

namespace attnd {

Tensor Dpfp(Ops& ops, const Tensor& x, int64_t nu) {
  if (!ops.Require(!x.empty() && nu >= 1, "dpfp", "x and nu >= 1")) return {};
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

Tensor SumNormalized(Ops& ops, const Tensor& x) {
  return ops.Apply(ElementOp::kSafeDivide, x, ops.Reduce(ReduceOp::kSum, x, /*axis=*/-1));
}

Tensor L2Normalized(Ops& ops, const Tensor& x, double eps) {
  const Tensor squares = ops.Reduce(ReduceOp::kSum, ops.Apply(ElementOp::kSquare, x), /*axis=*/-1);
  const Tensor norm = ops.Apply(ElementOp::kSqrt, ops.Affine(squares, 1, eps));
  return ops.Apply(ElementOp::kDivide, x, norm);
}

}  // namespace attnd
