// Ops::Reduce, SumTo, ArgMax and their gradient rules.
#include "kernels/device/reduce.h"

#include <numeric>

#include "kernels/ops/ops.h"

namespace attnd {
namespace {

// Whether every problem has an axis `axis`, and a float dtype.
bool HasAxis(const Tensor& x, int axis) {
  bool fits = !x.empty();
  for (size_t p = 0; fits && p < x.size(); ++p) {
    fits = IsFloat(x[p].dtype) && 0 <= axis && axis < x[p].shape.rank;
  }
  return fits;
}

// Not recorded.
Tensor Reduced(Ops& ops, ReduceOp op, const Tensor& x, int axis) {
  if (!ops.Require(HasAxis(x, axis), "reduce", "x must have the axis and a float dtype")) return {};
  std::vector<Shape> shapes = ShapesOf(x);
  for (Shape& shape : shapes) shape.dims[axis] = 1;
  const Tensor out = ops.Empty(IsArgMax(op) ? DType::kI32 : DType::kF32, shapes);
  if (!ops.status().ok()) return {};
  std::vector<ReduceProblem> problems;
  for (size_t p = 0; p < x.size(); ++p) problems.push_back({x[p], out[p]});
  ops.Run(ReduceArgs{.op = op, .axis = axis, .problems = std::move(problems)});
  return ops.status().ok() ? out : Tensor();
}

// value(n) of every problem's axis length n, as a tensor that broadcasts along the others.
template <class T, class F>
Tensor AlongAxis(Ops& ops, const Tensor& x, int axis, const F& values) {
  std::vector<Shape> shapes = ShapesOf(x);
  std::vector<std::vector<T>> lists;
  for (Shape& shape : shapes) {
    const int64_t n = shape[axis];
    lists.push_back(values(n));
    shape.dims.fill(1);
    shape.dims[axis] = static_cast<int64_t>(lists.back().size());
  }
  return ops.FromHost(shapes, lists);
}

// 1 at the first largest element along the axis, else 0.
Tensor IsFirstLargest(Ops& ops, const Tensor& x, int axis) {
  const Tensor place = Reduced(ops, ReduceOp::kArgMax, x, axis);
  const Tensor index = AlongAxis<int32_t>(ops, x, axis, [](int64_t n) {
    std::vector<int32_t> list(static_cast<size_t>(n));
    std::iota(list.begin(), list.end(), 0);
    return list;
  });
  return ops.Apply(ElementOp::kEqual, index, place);
}

// The gradient of x from that of its reduction.
Tensor GradientOf(Ops& ops, ReduceOp op, const Tensor& x, int axis, const Tensor& grad) {
  if (op == ReduceOp::kMax) {
    return ops.Select(IsFirstLargest(ops, x, axis), grad, NumberLike(ops, 0, x));
  }
  if (op == ReduceOp::kLogSumExp) {
    return ops.Apply(ElementOp::kMultiply, ops.Softmax(x, axis), grad);
  }
  Tensor each = grad;
  if (op == ReduceOp::kMean) {
    each = ops.Apply(ElementOp::kMultiply, grad, AlongAxis<float>(ops, x, axis, [](int64_t n) {
                       return std::vector<float>{n > 0 ? 1.0f / static_cast<float>(n) : 0.0f};
                     }));
  }
  return ops.Copy(ops.Expand(each, ShapesOf(x)));
}

}  // namespace

Tensor Ops::Reduce(ReduceOp op, const Tensor& x, int axis) {
  if (!Require(!x.empty(), "reduce", "x must not be empty")) return {};
  const int along = AxisOf(axis, x[0].shape.rank);
  const Tensor out = Reduced(*this, op, x, along);
  if (!status_.ok() || IsArgMax(op) || !Records({&x})) return out;
  tape_->Record({x}, {out},
                [op, x, along](Ops& ops, std::span<const Tensor> grads, const std::vector<bool>&)
                    -> std::vector<Tensor> { return {GradientOf(ops, op, x, along, grads[0])}; });
  return out;
}

Tensor Ops::ArgMax(const Tensor& x) { return Reduce(ReduceOp::kArgMax, x, -1); }

Tensor Ops::ArgMaxSigned(const Tensor& x) { return Reduce(ReduceOp::kArgMaxSigned, x, -1); }

Tensor Ops::SumTo(const Tensor& x, const std::vector<Shape>& shapes) {
  bool fits = !x.empty() && shapes.size() == x.size();
  for (size_t p = 0; fits && p < x.size(); ++p) {
    fits = shapes[p].rank == x[p].shape.rank;
    for (int i = 0; fits && i < shapes[p].rank; ++i) {
      fits = shapes[p][i] == x[p].shape[i] || shapes[p][i] == 1;
    }
  }
  if (!Require(fits, "sum_to", "dimensions stay or become 1")) return {};
  std::vector<View> views;
  std::vector<std::shared_ptr<Buffer>> buffers;
  for (size_t p = 0; p < x.size(); ++p) {
    views.push_back(x[p]);
    buffers.push_back(x.buffer(p));
  }
  bool changed = false;
  for (int axis = x[0].shape.rank - 1; axis >= 0; --axis) {
    std::vector<size_t> longer;
    for (size_t p = 0; p < x.size(); ++p) {
      if (axis < shapes[p].rank && views[p].shape[axis] != shapes[p][axis]) longer.push_back(p);
    }
    if (longer.empty()) continue;
    changed = true;
    std::vector<View> part_views;
    std::vector<std::shared_ptr<Buffer>> part_buffers;
    for (size_t p : longer) {
      part_views.push_back(views[p]);
      part_buffers.push_back(buffers[p]);
    }
    const Tensor sums = Reduced(*this, ReduceOp::kSum, Tensor(part_views, part_buffers), axis);
    if (!status_.ok()) return {};
    for (size_t i = 0; i < longer.size(); ++i) {
      views[longer[i]] = sums[i];
      buffers[longer[i]] = sums.buffer(i);
    }
  }
  if (!changed) return x;
  const Tensor out(std::move(views), std::move(buffers));
  if (Records({&x})) {
    tape_->Record({x}, {out},
                  [before = ShapesOf(x)](Ops& ops, std::span<const Tensor> grads,
                                         const std::vector<bool>&) -> std::vector<Tensor> {
                    return {ops.Copy(ops.Expand(grads[0], before))};
                  });
  }
  return out;
}

}  // namespace attnd
