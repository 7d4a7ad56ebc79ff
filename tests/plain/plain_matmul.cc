#include "tests/plain/plain_matmul.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace attnd::testing {
namespace {

double Activated(ElementOp op, double x) {
  const double sigmoid = 1 / (1 + std::exp(-x));
  if (std::isnan(x)) return x;
  switch (op) {
    case ElementOp::kRelu:
      return x > 0 ? x : 0;
    case ElementOp::kReluSquared:
      return x > 0 ? x * x : 0;
    case ElementOp::kExp:
      return std::exp(x);
    case ElementOp::kTanh:
      return std::tanh(x);
    case ElementOp::kSigmoid:
      return sigmoid;
    case ElementOp::kSilu:
      return x * sigmoid;
    case ElementOp::kGelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    default:
      std::abort();  // no test uses it
  }
}

// The matrix at a leading index, in which a dimension of 1 repeats.
const double* MatrixOf(const PlainArray& array, const std::vector<int64_t>& leading) {
  const int rank = array.shape.rank;
  int64_t matrix = 0;
  for (int i = 0; i + 2 < rank; ++i) {
    matrix = matrix * array.shape[i] + (array.shape[i] == 1 ? 0 : leading[i]);
  }
  return array.values.data() + matrix * array.shape[rank - 2] * array.shape[rank - 1];
}

// The leading dimensions of a and b together.
Shape LeadingOf(const Shape& a, const Shape& b) {
  Shape leading;
  leading.rank = a.rank - 2;
  for (int i = 0; i < leading.rank; ++i) leading.dims[i] = a[i] != 1 ? a[i] : b[i];
  return leading;
}

}  // namespace

template <class Real>
PlainArray MatMulIn(const MatMulArgs& args, const MatMulProblem& problem) {
  const PlainArray a = ReadView(problem.a), b = ReadView(problem.b);
  const PlainArray bias = ReadView(problem.bias), multiply = ReadView(problem.multiply);
  PlainArray out(problem.out.shape);
  const int rank = out.shape.rank;
  const int64_t M = out.shape[rank - 2], N = out.shape[rank - 1], K = a.shape[rank - 1];
  std::vector<Real> sums(out.values.size(), Real{0});
  if (!out.values.empty()) {
    ForEachIndex(LeadingOf(a.shape, b.shape), [&](const std::vector<int64_t>& leading) {
      const double *left = MatrixOf(a, leading), *right = MatrixOf(b, leading);
      Real* to = sums.data() + (MatrixOf(out, leading) - out.values.data());
      for (int64_t m = 0; m < M; ++m) {
        for (int64_t k = 0; k < K; ++k) {
          const Real factor = static_cast<Real>(left[m * K + k]);
          for (int64_t n = 0; n < N; ++n) {
            to[m * N + n] += factor * static_cast<Real>(right[k * N + n]);
          }
        }
      }
    });
  }
  size_t at = 0;
  ForEachIndex(out.shape, [&](const std::vector<int64_t>& index) {
    Real x = static_cast<Real>(args.alpha) * sums[at];
    if (problem.bias.given()) x += static_cast<Real>(bias.At(index));
    if (args.activation.has_value()) x = static_cast<Real>(Activated(*args.activation, x));
    if (problem.multiply.given()) x *= static_cast<Real>(multiply.At(index));
    out.values[at++] = x;
  });
  return out;
}

template PlainArray MatMulIn<double>(const MatMulArgs&, const MatMulProblem&);
template PlainArray MatMulIn<float>(const MatMulArgs&, const MatMulProblem&);

template <>
void PlainRun(const MatMulArgs& args) {
  for (const MatMulProblem& p : args.problems) WriteView(MatMulIn<double>(args, p), p.out);
}

}  // namespace attnd::testing
