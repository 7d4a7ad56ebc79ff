// Ops::Apply and its gradient rules.
#include "kernels/ops/ops.h"

namespace attnd {

int Operands(ElementOp op) { return op < ElementOp::kAdd ? 1 : op < ElementOp::kSelect ? 2 : 3; }

Tensor Ops::Apply(ElementOp, const Tensor&, DType) {
  Require(false, "apply", "is not built yet");
  return {};
}

Tensor Ops::Apply(ElementOp, const Tensor&, const Tensor&, DType) {
  Require(false, "apply", "is not built yet");
  return {};
}

Tensor Ops::Select(const Tensor&, const Tensor&, const Tensor&) {
  Require(false, "apply", "is not built yet");
  return {};
}

Tensor Ops::Affine(const Tensor&, double, double, DType) {
  Require(false, "apply", "is not built yet");
  return {};
}

Tensor Ops::Add(const Tensor& a, const Tensor& b) {
  if (!status_.ok()) return {};
  bool fits = !a.empty() && a.size() == b.size();
  for (size_t p = 0; fits && p < a.size(); ++p) {
    fits = IsFloat(a[p].dtype) && a[p].dtype == a[0].dtype && IsFloat(b[p].dtype) &&
           a[p].shape == b[p].shape;
  }
  if (!Require(fits, "add", "a and b must have one shape and float dtypes")) return {};
  const Tensor sum = Empty(a[0].dtype, ShapesOf(a), LayoutsOf(a));
  if (!status_.ok()) return {};
  std::vector<ElementwiseProblem> problems;
  for (size_t p = 0; p < a.size(); ++p) problems.push_back({a[p], b[p], {}, sum[p]});
  Fail(stream_.backend().Elementwise(stream_, {.op = ElementOp::kAdd, .problems = problems}));
  if (!status_.ok()) return {};
  if (Records({&a, &b})) {
    tape_->Record({a, b}, {sum}, [](Ops&, std::span<const Tensor> grads, const std::vector<bool>&) {
      return std::vector<Tensor>{grads[0], grads[0]};
    });
  }
  return sum;
}

}  // namespace attnd
