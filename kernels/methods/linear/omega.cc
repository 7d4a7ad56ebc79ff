#include "kernels/methods/linear/omega.h"

#include <utility>

#include "kernels/method/drawn.h"
#include "kernels/method/shape_rules.h"
#include "kernels/method/tensors.h"

namespace attnd {
namespace {

constexpr int64_t kMostFeatures = 65536;

// The shape of a drawn table.
Shape DrawnShape(const ProblemShape& p, const OmegaOptions& o) {
  const int64_t m = FeaturesOf(p, o);
  return o.per_head ? Shape{p.Hkv, m, p.D} : Shape{m, p.D};
}

}  // namespace

TensorInfo OmegaInput(std::string help) {
  return {
      .name = "omega", .shape = "[m,D] or [Hkv,m,D]", .dtype = "float", .help = std::move(help)};
}

int64_t FeaturesOf(const ProblemShape& problem, const OmegaOptions& o) {
  const View* sent = problem.Find("omega");
  if (sent != nullptr && sent->shape.rank >= 2) return sent->shape[sent->shape.rank - 2];
  return o.num_features.value_or(o.usual_features);
}

void CheckOmega(const ProblemShape& problem, const OmegaOptions& o, Reasons* reasons) {
  const View* sent = problem.Find("omega");
  if (sent == nullptr) {
    CheckDrawn(problem, "omega", o.draw, DrawnShape(problem, o), reasons);
    return;
  }
  if (sent->shape.rank < 2) return;
  const int64_t m = FeaturesOf(problem, o);
  if (m < 1 || m > kMostFeatures) {
    reasons->Invalid("omega shape must have m in 1..", kMostFeatures, ", got ",
                     ToString(sent->shape));
  } else {
    CheckSameSize("num_features", o.num_features, "omega", m, reasons);
  }
}

Tensor Omega(Ops& ops, const Inputs& in, const OmegaOptions& o, const ScanSplit& split) {
  std::vector<Shape> shapes;
  for (const ProblemShape& p : in.problems) shapes.push_back(DrawnShape(p, o));
  return WithRank(ops, split.Shared(SentOrDrawn(ops, in, "omega", o.draw, shapes)), 4);
}

Tensor Projected(Ops& ops, const Tensor& x, const Tensor& omega, const Tensor& keys,
                 const MatMulParams& params) {
  if (!ops.status().ok()) return {};
  std::vector<Shape> grouped, shared, results;
  for (size_t p = 0; p < x.size(); ++p) {
    const Shape &s = x[p].shape, &w = omega[p].shape;
    const int64_t Hkv = keys[p].shape[1];
    grouped.push_back({s[0], Hkv, s[1] / Hkv, s[2], s[3]});
    shared.push_back({w[0], w[1], 1, w[2], w[3]});
    results.push_back({s[0], s[1], s[2], w[2]});
  }
  const Tensor rows = ops.Transpose(ops.Reshape(omega, shared), 3, 4);
  return ops.Reshape(ops.MatMul(ops.Reshape(x, grouped), rows, params), results);
}

}  // namespace attnd
