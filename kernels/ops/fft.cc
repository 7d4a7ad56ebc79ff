// Ops::RealFft2 and its gradient rule.
#include "kernels/ops/ops.h"

#include <cmath>

namespace attnd {
namespace {

// 5 n C log2(n C) of every matrix, the usual count of a transform of n C numbers.
double FlopsOf(const std::vector<Shape>& shapes) {
  double flops = 0;
  for (const Shape& s : shapes) {
    const double one = static_cast<double>(s[s.rank - 2] * s[s.rank - 1]);
    if (one > 1) flops += 5 * static_cast<double>(s.size()) * std::log2(one);
  }
  return flops;
}

}  // namespace

Tensor Ops::RealFft2(const Tensor& x, bool is_returned) {
  bool fits = !x.empty();
  for (size_t p = 0; fits && p < x.size(); ++p) fits = x[p].shape.rank >= 2 && IsFloat(x[p].dtype);
  if (!Require(fits, "fft", "x [.., N, M] of a float dtype")) return {};
  const Tensor out = Empty(DType::kF32, ShapesOf(x));
  if (!status_.ok()) return {};
  if (!is_returned || !wants_gradients_alone()) {
    std::vector<FftProblem> problems;
    for (size_t p = 0; p < x.size(); ++p) problems.push_back({x[p], out[p]});
    stream_.work().flops += FlopsOf(ShapesOf(x));
    Run(FftArgs{.problems = std::move(problems)});
  }
  if (!status_.ok()) return {};
  if (Records({&x})) {
    tape_->Record(
        {x}, {out},
        [](Ops& ops, std::span<const Tensor> grads,
           const std::vector<bool>&) -> std::vector<Tensor> { return {ops.RealFft2(grads[0])}; });
  }
  return out;
}

}  // namespace attnd
