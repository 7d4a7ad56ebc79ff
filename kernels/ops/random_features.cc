// Ops::RandomFeatures and its gradient rule.
#include "kernels/ops/composed.h"

namespace attnd {
namespace {

bool Fits(const View& x, const View& w) {
  const Shape &s = x.shape, &ws = w.shape;
  return s.rank == 4 && ws.rank == 4 && IsFloat(x.dtype) && w.dtype == DType::kF32 && ws[0] == 1 &&
         ws[1] >= 1 && s[1] % ws[1] == 0 && ws[2] >= 1 && ws[3] == s[3];
}

bool Fits(const RandomFeaturesParams& o) {
  return o.eps >= 0 && (o.eps == 0 || !HasWaves(o.feature)) &&
         (!o.shares_shift || HasShift(o.feature)) &&
         (o.feature != RandomFeature::kMapped || Operands(o.map) == 1);
}

// A product with every direction. The gradient of x is another one; running the first again is no
// work of the definition.
void CountFlops(Ops& ops, const Tensor& x, const Tensor& w) {
  for (size_t p = 0; p < x.size(); ++p) {
    ops.stream().work().flops +=
        2 * static_cast<double>(x[p].shape.size()) * static_cast<double>(w[p].shape[2]);
  }
}

RandomFeaturesProblem Problem(const Tensor& x, const Tensor& w, const RandomFeaturesOut& out,
                              size_t p) {
  return {x[p], w[p], out.phi[p], ViewOf(out.shift, p)};
}

Tensor Gradient(Ops& ops, const Tensor& x, const Tensor& w, const RandomFeaturesParams& params,
                const RandomFeaturesOut& out, const Tensor& dphi) {
  const Tensor incoming = WithContiguousRows(ops, dphi);
  const Tensor dx = ops.Empty(x[0].dtype, ShapesOf(x), LayoutsOf(x));
  if (!ops.status().ok()) return {};
  std::vector<RandomFeaturesGradProblem> problems;
  for (size_t p = 0; p < x.size(); ++p) {
    problems.push_back({Problem(x, w, out, p), incoming[p], dx[p]});
  }
  CountFlops(ops, x, w);
  ops.Run(RandomFeaturesGradArgs{.params = params, .problems = std::move(problems)});
  return ops.status().ok() ? dx : Tensor();
}

}  // namespace

RandomFeaturesOut Ops::RandomFeatures(const Tensor& x, const Tensor& w,
                                      const RandomFeaturesParams& params) {
  bool fits = !x.empty() && w.size() == x.size() && Fits(params);
  for (size_t p = 0; fits && p < x.size(); ++p) {
    fits = Fits(x[p], w[p]) && x[p].dtype == x[0].dtype;
  }
  fits = fits && HasContiguousRows(w);
  if (!Require(fits, "random_features",
               "x [B,H,N,D] of a float dtype, w [1,Hw,m,D] of float32 with contiguous rows")) {
    return {};
  }
  // The launch has no gradient of w.
  if (Records({&w})) return ComposeRandomFeatures(*this, x, w, params);
  const bool records = Records({&x});
  if (records && Declines(RandomFeaturesGradArgs())) {
    return ComposeRandomFeatures(*this, x, w, params);
  }
  const Tensor rows = WithContiguousRows(*this, x);
  std::vector<Shape> phi, shift;
  for (size_t p = 0; p < x.size(); ++p) {
    const Shape& s = x[p].shape;
    phi.push_back({s[0], s[1], s[2], FeatureCount(params.feature, w[p].shape[2])});
    shift.push_back({s[0], s[1], params.shares_shift ? 1 : s[2], 1});
  }
  RandomFeaturesOut out = {.phi = Empty(DType::kF32, phi)};
  if (HasShift(params.feature)) out.shift = Empty(DType::kF32, shift);
  if (!status_.ok()) return {};
  std::vector<RandomFeaturesProblem> problems;
  for (size_t p = 0; p < x.size(); ++p) problems.push_back(Problem(rows, w, out, p));
  if (!TryRun(RandomFeaturesArgs{.params = params, .problems = std::move(problems)})) {
    return ComposeRandomFeatures(*this, x, w, params);
  }
  if (!status_.ok()) return {};
  CountFlops(*this, x, w);
  if (records) {
    tape_->Record({x}, {out.phi},
                  [=](Ops& ops, std::span<const Tensor> grads,
                      const std::vector<bool>&) -> std::vector<Tensor> {
                    return {Gradient(ops, rows, w, params, out, grads[0])};
                  });
  }
  return out;
}

}  // namespace attnd
