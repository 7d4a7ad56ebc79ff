// Ops::MatMul and its gradient rule.
#include "kernels/ops/ops.h"

namespace attnd {
namespace {

constexpr absl::string_view kRule =
    "a [.., M, K] and b [.., K, N] of float dtypes and equal ranks, leading dimensions equal or 1; "
    "bias and multiply broadcast to the result";

bool Repeats(const Shape& from, const Shape& to) {
  bool fits = from.rank == to.rank;
  for (int i = 0; fits && i < to.rank; ++i) fits = from[i] == to[i] || from[i] == 1;
  return fits;
}

bool Multiplies(const View& a, const View& b) {
  const int rank = a.shape.rank;
  bool fits = rank >= 2 && rank == b.shape.rank && IsFloat(a.dtype) && IsFloat(b.dtype) &&
              a.shape[rank - 1] == b.shape[rank - 2];
  for (int i = 0; fits && i + 2 < rank; ++i) {
    fits = a.shape[i] == b.shape[i] || a.shape[i] == 1 || b.shape[i] == 1;
  }
  return fits;
}

Shape ProductShape(const Shape& a, const Shape& b) {
  Shape shape = a;
  for (int i = 0; i + 2 < a.rank; ++i) {
    if (a[i] == 1) shape.dims[i] = b[i];
  }
  shape.dims[a.rank - 1] = b[a.rank - 1];
  return shape;
}

// The shapes of the results; empty where the contract is broken.
std::vector<Shape> Results(const Tensor& a, const Tensor& b, const Tensor& bias,
                           const Tensor& multiply) {
  if (a.empty() || b.size() != a.size()) return {};
  std::vector<Shape> shapes;
  for (size_t p = 0; p < a.size(); ++p) {
    if (!Multiplies(a[p], b[p])) return {};
    shapes.push_back(ProductShape(a[p].shape, b[p].shape));
  }
  for (const Tensor* term : {&bias, &multiply}) {
    if (term->empty()) continue;
    if (term->size() != a.size()) return {};
    for (size_t p = 0; p < a.size(); ++p) {
      if (!IsFloat((*term)[p].dtype) || !Repeats((*term)[p].shape, shapes[p])) return {};
    }
  }
  return shapes;
}

double FlopsOf(const MatMulArgs& args) {
  double flops = 0;
  for (const MatMulProblem& p : args.problems) {
    const int rank = p.a.shape.rank;
    double products = 1;
    for (int i = 0; i + 2 < rank; ++i) {
      products *= static_cast<double>(p.a.shape[i] == 1 ? p.b.shape[i] : p.a.shape[i]);
    }
    flops += 2 * products * static_cast<double>(p.a.shape[rank - 2] * p.a.shape[rank - 1]) *
             static_cast<double>(p.b.shape[rank - 1]);
  }
  return flops;
}

// One launch. Leading dimensions of `shapes` that are 1 where an operand has more are summed.
Tensor Product(Ops& ops, const Tensor& a, const Tensor& b, const std::vector<Shape>& shapes,
               const MatMulParams& params, const Tensor& bias = {}, const Tensor& multiply = {}) {
  const Tensor out = ops.Empty(params.dtype, shapes);
  if (!ops.status().ok()) return {};
  if (params.is_returned && ops.wants_gradients_alone()) return out;
  std::vector<MatMulProblem> problems;
  for (size_t p = 0; p < a.size(); ++p) {
    problems.push_back({a[p], b[p], ViewOf(bias, p), ViewOf(multiply, p), out[p]});
  }
  MatMulArgs args{
      .alpha = params.alpha, .activation = params.activation, .problems = std::move(problems)};
  ops.stream().work().flops += FlopsOf(args);
  ops.Run(std::move(args));
  return ops.status().ok() ? out : Tensor();
}

// Of alpha a b + bias: da = alpha g b^T, db = alpha a^T g, each summed over what it repeats.
GradRule ProductGradient(const Tensor& a, const Tensor& b, const Tensor& bias, double alpha) {
  return [=](Ops& ops, std::span<const Tensor> grads, const std::vector<bool>& wanted) {
    const Tensor& g = grads[0];
    std::vector<Tensor> result(wanted.size());
    if (wanted[0]) {
      result[0] = Product(ops, g, ops.Transpose(b, -2, -1), ShapesOf(a), {.alpha = alpha});
    }
    if (wanted[1]) {
      result[1] = Product(ops, ops.Transpose(a, -2, -1), g, ShapesOf(b), {.alpha = alpha});
    }
    if (wanted.size() > 2 && wanted[2]) result[2] = ops.SumTo(g, ShapesOf(bias));
    return result;
  };
}

}  // namespace

Tensor Ops::MatMul(const Tensor& a, const Tensor& b, const MatMulParams& params, const Tensor& bias,
                   const Tensor& multiply) {
  if (!status_.ok()) return {};
  const std::vector<Shape> shapes = Results(a, b, bias, multiply);
  const bool is_unary = !params.activation.has_value() || Operands(*params.activation) == 1;
  if (!Require(!shapes.empty() && is_unary && IsFloat(params.dtype), "matmul", kRule)) return {};
  const bool follows = params.activation.has_value() || !multiply.empty();
  if (!Require(!follows || !params.is_returned, "matmul", "what is returned follows no product")) {
    return {};
  }
  if (follows && Records({&a, &b, &bias, &multiply})) {
    // The gradient needs the product before activation and factor: run them one at a time.
    Tensor x = MatMul(a, b, {.alpha = params.alpha}, bias);
    const DType then = multiply.empty() ? params.dtype : DType::kF32;
    if (params.activation.has_value()) x = Apply(*params.activation, x, then);
    return multiply.empty() ? x : Apply(ElementOp::kMultiply, x, multiply, params.dtype);
  }
  const Tensor out = Product(*this, a, b, shapes, params, bias, multiply);
  if (!status_.ok()) return {};
  if (Records({&a, &b, &bias})) {
    std::vector<Tensor> inputs = {a, b};
    if (!bias.empty()) inputs.push_back(bias);
    tape_->Record(std::move(inputs), {out}, ProductGradient(a, b, bias, params.alpha));
  }
  return out;
}

}  // namespace attnd
