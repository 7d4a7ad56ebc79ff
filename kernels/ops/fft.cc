// Ops::RealFft2 and its gradient rule.
#include "kernels/ops/ops.h"

namespace attnd {

Tensor Ops::RealFft2(const Tensor& x, bool is_returned) {
  bool fits = !x.empty();
  for (size_t p = 0; fits && p < x.size(); ++p) fits = x[p].shape.rank >= 2 && IsFloat(x[p].dtype);
  if (!Require(fits, "fft", "x [.., N, M] of a float dtype")) return {};
  const Tensor out = Empty(DType::kF32, ShapesOf(x));
  if (!status_.ok()) return {};
  if (!is_returned || !wants_gradients_alone()) {
    std::vector<FftProblem> problems;
    for (size_t p = 0; p < x.size(); ++p) problems.push_back({x[p], out[p]});
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
