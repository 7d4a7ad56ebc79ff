#include "kernels/methods/linear/omega.h"

#include <utility>

#include "kernels/method/drawn.h"
#include "kernels/method/shape_rules.h"
#include "kernels/method/tensors.h"
#include "kernels/ops/ops.h"

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

Tensor Omega(Ops& ops, const Inputs& in, const OmegaOptions& o) {
  std::vector<Shape> shapes;
  for (const ProblemShape& p : in.problems) shapes.push_back(DrawnShape(p, o));
  const Tensor w = WithRank(ops, SentOrDrawn(ops, in, "omega", o.draw, shapes), 3);
  if (!ops.status().ok()) return {};
  return w[0].dtype == DType::kF32 ? WithContiguousRows(ops, w) : ops.Copy(w);
}

}  // namespace attnd
