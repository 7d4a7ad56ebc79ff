#include "kernels/method/drawn.h"

#include "kernels/ops/ops.h"

namespace attnd {

void CheckDrawn(const ProblemShape& problem, absl::string_view name, const DrawParams& params,
                const Shape& shape, Reasons* reasons) {
  if (problem.Find(name) != nullptr) return;
  const DrawCost cost = CostOfDraw(params, shape);
  if (cost.elements > kMostDrawn) {
    reasons->Invalid(name, " must be sent where it has more than ", kMostDrawn, " elements, got ",
                     cost.elements);
  } else if (cost.steps > kMostDrawSteps) {
    reasons->Invalid(name,
                     " must be sent where m^2 D + 16 D^2 over its blocks of m <= D orthogonal ",
                     "rows is more than ", kMostDrawSteps, ", got ", cost.steps);
  }
}

Tensor SentOrDrawn(Ops& ops, const Inputs& in, absl::string_view name, const DrawParams& params,
                   const std::vector<Shape>& shapes) {
  return SentOrDrawn(ops, in, name, std::vector<DrawParams>(shapes.size(), params), shapes);
}

Tensor SentOrDrawn(Ops& ops, const Inputs& in, absl::string_view name,
                   const std::vector<DrawParams>& params, const std::vector<Shape>& shapes) {
  const auto sent = in.tensors.find(std::string(name));
  return sent != in.tensors.end() ? sent->second : ops.Draw(params, shapes);
}

}  // namespace attnd
