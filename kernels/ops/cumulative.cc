// Ops::Cumulative and its gradient rules.
#include <algorithm>
#include <limits>
#include <vector>

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

// Where slices of an axis lie that are `distance` elements apart: [0, left) and [by, size).
struct Shifted {
  std::vector<int64_t> zero = {0}, by, left, size;

  Shifted(const Tensor& x, int axis, int64_t distance) {
    for (size_t p = 0; p < x.size(); ++p) {
      size.push_back(x[p].shape[axis]);
      by.push_back(std::min(distance, size.back()));
      left.push_back(size.back() - by.back());
    }
  }
};

// x_i + sum over the elements j before i (after, in reverse) of x_j e^-|m_j - m_i|, by doubling the
// terms; m is the running maximum of `how`.
Tensor FadingSums(Ops& ops, const CumulativeArgs& how, const Tensor& x, const Tensor& m,
                  bool reverse) {
  const int axis = how.axis;
  int64_t most = 0;
  for (size_t p = 0; p < x.size(); ++p) most = std::max(most, x[p].shape[axis]);
  Tensor sums = x;
  for (int64_t terms = 1; terms < most && ops.status().ok(); terms *= 2) {
    const Shifted at(x, axis, terms);
    const auto low = [&](const Tensor& t) { return ops.Slice(t, axis, at.zero, at.left); };
    const auto high = [&](const Tensor& t) { return ops.Slice(t, axis, at.by, at.size); };
    const Tensor fall = how.reverse ? ops.Apply(ElementOp::kSubtract, high(m), low(m))
                                    : ops.Apply(ElementOp::kSubtract, low(m), high(m));
    const Tensor factor = ops.Apply(ElementOp::kExp, fall);
    const Tensor more = ops.Apply(ElementOp::kMultiply, factor, reverse ? high(sums) : low(sums));
    if (reverse) {
      sums = ops.Concat(
          {ops.Apply(ElementOp::kAdd, low(sums), more), ops.Slice(sums, axis, at.left, at.size)},
          axis);
    } else {
      sums = ops.Concat(
          {ops.Slice(sums, axis, at.zero, at.by), ops.Apply(ElementOp::kAdd, high(sums), more)},
          axis);
    }
  }
  return sums;
}

// An exclusive result is the inclusive one of the element before: its gradient belongs there.
Tensor OfInclusive(Ops& ops, const CumulativeArgs& how, const Tensor& grad) {
  if (!how.exclusive) return grad;
  const Shifted at(grad, how.axis, 1);
  std::vector<Shape> ends = ShapesOf(grad);
  for (size_t p = 0; p < ends.size(); ++p) ends[p].dims[how.axis] = at.by[p];
  const Tensor end = ops.Constant(0, ends);
  if (how.reverse) return ops.Concat({end, ops.Slice(grad, how.axis, at.zero, at.left)}, how.axis);
  return ops.Concat({ops.Slice(grad, how.axis, at.by, at.size), end}, how.axis);
}

// dx_i = sum over j that see i of g_j e^(x_i - m_j) / S_j with m_j the largest that j sees and S_j
// the sum of its e^(x - m_j): differences are exact at any size of x, log S_j + m_j is not.
Tensor GradientOfLogSumExp(Ops& ops, const CumulativeArgs& how, const Tensor& x,
                           const Tensor& grad) {
  CumulativeArgs inclusive = how;
  inclusive.op = CumulativeOp::kMax;
  inclusive.exclusive = false;
  // Finite where all elements so far are -inf, whose sums are 0.
  const Tensor m = ops.Apply(ElementOp::kMaximum, Computed(ops, inclusive, x, {}),
                             NumberLike(ops, std::numeric_limits<float>::lowest(), x));
  const Tensor own = ops.Apply(ElementOp::kExp, ops.Apply(ElementOp::kSubtract, x, m));
  const Tensor sums = FadingSums(ops, how, own, m, how.reverse);
  const Tensor shares = ops.Apply(ElementOp::kSafeDivide, OfInclusive(ops, how, grad), sums);
  return ops.Apply(ElementOp::kMultiply, own, FadingSums(ops, how, shares, m, !how.reverse));
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
      [how, x](Ops& ops, std::span<const Tensor> grads,
               const std::vector<bool>&) -> std::vector<Tensor> {
        switch (how.op) {
          case CumulativeOp::kMax:
            return {GradientOfMax(ops, how, x, grads[0])};
          case CumulativeOp::kLogSumExp:
            return {GradientOfLogSumExp(ops, how, x, grads[0])};
          default:
            return {ops.Cumulative(how.op, grads[0], how.axis, how.exclusive, !how.reverse)};
        }
      });
  return out;
}

}  // namespace attnd
