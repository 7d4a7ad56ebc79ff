// Ops::Apply and its gradient rules.
#include "kernels/device/elementwise.h"

#include <limits>

#include "kernels/ops/composed.h"

namespace attnd {
namespace {

// The shape that both broadcast to; rank 0 if there is none.
Shape Broadcast(const Shape& a, const Shape& b) {
  if (a.rank != b.rank) return {};
  Shape shape = a;
  for (int i = 0; i < a.rank; ++i) {
    if (a[i] == 1) shape.dims[i] = b[i];
    if (b[i] != a[i] && b[i] != 1 && a[i] != 1) return {};
  }
  return shape;
}

// Runs `op` into a new tensor; empty operands are absent.
Tensor Computed(Ops& ops, const ElementwiseArgs& op, const Tensor& a, const Tensor& b,
                const Tensor& c, DType dtype) {
  const bool copies_int = op.op == ElementOp::kCopy && dtype == DType::kI32;
  bool fits = !a.empty() && (IsFloat(dtype) || copies_int);
  for (const Tensor* x : {&a, &b, &c}) fits = fits && (x->empty() || x->size() == a.size());
  std::vector<Shape> shapes;
  for (size_t p = 0; fits && p < a.size(); ++p) {
    Shape shape = a[p].shape;
    for (const Tensor* x : {&a, &b, &c}) {
      if (x->empty()) continue;
      const View& view = (*x)[p];
      fits = fits && (copies_int ? view.dtype == DType::kI32
                                 : IsFloat(view.dtype) || view.dtype == DType::kI32);
      shape = Broadcast(shape, view.shape);
    }
    shapes.push_back(shape);
    fits = fits && shape.rank > 0;
  }
  if (!ops.Require(fits, "apply", "operands must broadcast and have float or int32 elements")) {
    return {};
  }
  const Tensor out = ops.Empty(dtype, shapes);
  if (!ops.status().ok()) return {};
  std::vector<ElementwiseProblem> problems;
  for (size_t p = 0; p < a.size(); ++p) {
    problems.push_back({a[p], ViewOf(b, p), ViewOf(c, p), out[p]});
  }
  ElementwiseArgs args = op;
  args.problems = problems;
  ops.Run(args);
  return ops.status().ok() ? out : Tensor();
}

// Partial gradients of an op of two operands; they may have to be summed to the operands' shapes.
struct Partials {
  const ElementOp op;
  const Tensor a, b, out;

  Tensor ToA(Ops& ops, const Tensor& g) const {
    switch (op) {
      case ElementOp::kMultiply:
        return ops.Apply(ElementOp::kMultiply, g, b);
      case ElementOp::kDivide:
      case ElementOp::kSafeDivide:
        return ops.Apply(op, g, b);
      case ElementOp::kMaximum:
        return Chosen(ops, g, a, b);
      case ElementOp::kMinimum:
        return Chosen(ops, g, b, a);
      case ElementOp::kLogAddExp:
        return Share(ops, g, a);
      default:
        return g;
    }
  }

  Tensor ToB(Ops& ops, const Tensor& g) const {
    switch (op) {
      case ElementOp::kSubtract:
        return ops.Affine(ops.SumTo(g, ShapesOf(b)), -1);
      case ElementOp::kMultiply:
        return ops.Apply(ElementOp::kMultiply, g, a);
      case ElementOp::kDivide:
      case ElementOp::kSafeDivide: {  // -g a / b^2 = -g out / b, summed before the division
        const Tensor along = ops.SumTo(ops.Apply(ElementOp::kMultiply, g, out), ShapesOf(b));
        return ops.Affine(ops.Apply(op, along, b), -1);
      }
      case ElementOp::kMaximum:
        return Chosen(ops, g, b, a);
      case ElementOp::kMinimum:
        return Chosen(ops, g, a, b);
      case ElementOp::kLogAddExp:
        return Share(ops, g, b);
      default:
        return g;
    }
  }

 private:
  // g where x > y, half of it where they are equal, else 0.
  static Tensor Chosen(Ops& ops, const Tensor& g, const Tensor& x, const Tensor& y) {
    const Tensor tie =
        ops.Select(ops.Apply(ElementOp::kEqual, x, y), ops.Affine(g, 0.5), NumberLike(ops, 0, g));
    return ops.Select(ops.Apply(ElementOp::kGreater, x, y), g, tie);
  }

  // g e^(x - out), 0 where x is -inf.
  Tensor Share(Ops& ops, const Tensor& g, const Tensor& x) const {
    const Tensor least = NumberLike(ops, -std::numeric_limits<float>::infinity(), g);
    const Tensor weight = ops.Apply(ElementOp::kExp, ops.Apply(ElementOp::kSubtract, x, out));
    return ops.Select(ops.Apply(ElementOp::kGreater, x, least),
                      ops.Apply(ElementOp::kMultiply, g, weight), NumberLike(ops, 0, g));
  }
};

Tensor ApplyOne(Ops& ops, const ElementwiseArgs& op, const Tensor& a, DType dtype) {
  const Tensor out = Computed(ops, op, a, {}, {}, dtype);
  if (!ops.status().ok() || !ops.Records({&a})) return out;
  const auto rule = [op, a](Ops& o, std::span<const Tensor> grads,
                            const std::vector<bool>&) -> std::vector<Tensor> {
    if (op.op == ElementOp::kCopy) return {grads[0]};
    ElementwiseArgs derivative = op;
    derivative.derivative = true;
    return {Computed(o, derivative, grads[0], a, {}, DType::kF32)};
  };
  ops.tape()->Record({a}, {out}, rule);
  return out;
}

}  // namespace

Tensor NumberLike(Ops& ops, float value, const Tensor& like) {
  std::vector<Shape> shapes = ShapesOf(like);
  for (Shape& shape : shapes) shape.dims.fill(1);
  return ops.Constant(value, shapes);
}

int Operands(ElementOp op) { return op < ElementOp::kAdd ? 1 : op < ElementOp::kSelect ? 2 : 3; }

void ApplyInto(Ops& ops, ElementOp op, const Tensor& out, const Tensor& a, const Tensor& b,
               const Tensor& c) {
  if (!ops.status().ok()) return;
  std::vector<ElementwiseProblem> problems;
  for (size_t p = 0; p < out.size(); ++p) {
    problems.push_back({ViewOf(a, p), ViewOf(b, p), ViewOf(c, p), out[p]});
  }
  ops.Run(ElementwiseArgs{.op = op, .problems = std::move(problems)});
}

Tensor Ops::Apply(ElementOp op, const Tensor& a, DType dtype) {
  if (!Require(Operands(op) == 1, "apply", "the operation takes another number of operands")) {
    return {};
  }
  return ApplyOne(*this, {.op = op}, a, dtype);
}

Tensor Ops::Affine(const Tensor& a, double alpha, double beta, DType dtype) {
  if (!status_.ok()) return {};
  const ElementwiseArgs op = {.op = ElementOp::kAffine,
                              .alpha = static_cast<float>(alpha),
                              .beta = static_cast<float>(beta)};
  return ApplyOne(*this, op, a, dtype);
}

Tensor Ops::Apply(ElementOp op, const Tensor& a, const Tensor& b, DType dtype) {
  if (!Require(Operands(op) == 2 && !a.empty() && !b.empty(), "apply",
               "the operation takes another number of operands")) {
    return {};
  }
  const Tensor out = Computed(*this, {.op = op}, a, b, {}, dtype);
  const bool is_constant = op == ElementOp::kGreater || op == ElementOp::kEqual;
  if (!status_.ok() || is_constant || !Records({&a, &b})) return out;
  const Partials partials = {op, a, b, out};
  tape_->Record({a, b}, {out},
                [partials](Ops& ops, std::span<const Tensor> grads,
                           const std::vector<bool>& wanted) -> std::vector<Tensor> {
                  const Tensor& g = grads[0];
                  std::vector<Tensor> result(2);
                  if (wanted[0]) {
                    result[0] = ops.SumTo(partials.ToA(ops, g), ShapesOf(partials.a));
                  }
                  if (wanted[1]) {
                    result[1] = ops.SumTo(partials.ToB(ops, g), ShapesOf(partials.b));
                  }
                  return result;
                });
  return out;
}

Tensor Ops::Select(const Tensor& a, const Tensor& b, const Tensor& c) {
  if (!Require(!a.empty() && !b.empty() && !c.empty(), "select", "takes three operands")) return {};
  const Tensor out = Computed(*this, {.op = ElementOp::kSelect}, a, b, c, DType::kF32);
  if (!status_.ok() || !Records({&b, &c})) return out;
  tape_->Record({b, c}, {out},
                [a, to_b = ShapesOf(b), to_c = ShapesOf(c)](
                    Ops& ops, std::span<const Tensor> grads,
                    const std::vector<bool>& wanted) -> std::vector<Tensor> {
                  const Tensor zero = NumberLike(ops, 0, grads[0]);
                  std::vector<Tensor> result(2);
                  if (wanted[0]) result[0] = ops.SumTo(ops.Select(a, grads[0], zero), to_b);
                  if (wanted[1]) result[1] = ops.SumTo(ops.Select(a, zero, grads[0]), to_c);
                  return result;
                });
  return out;
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
  Run(ElementwiseArgs{.op = ElementOp::kAdd, .problems = std::move(problems)});
  if (!status_.ok()) return {};
  if (Records({&a, &b})) {
    tape_->Record({a, b}, {sum}, [](Ops&, std::span<const Tensor> grads, const std::vector<bool>&) {
      return std::vector<Tensor>{grads[0], grads[0]};
    });
  }
  return sum;
}

}  // namespace attnd
