// Tensors that are drawn from a seed where they are not sent.
#pragma once

#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/core/random_table.h"
#include "kernels/core/status.h"
#include "kernels/method/method.h"
#include "kernels/method/problem.h"

namespace attnd {

// For CheckProblem: refuses a table that is too large to be drawn, unless the tensor was sent.
// Every table that a formula draws must pass. Of `params` only the distribution is used.
void CheckDrawn(const ProblemShape& problem, absl::string_view name, const DrawParams& params,
                const Shape& shape, Reasons* reasons);

// The tensor as sent, else Ops::Draw: rounded to float32 once, so that a client that sends the
// drawn numbers as float32 gets the same results. Sent shapes may differ from `shapes`.
Tensor SentOrDrawn(Ops& ops, const Inputs& in, absl::string_view name, const DrawParams& params,
                   const std::vector<Shape>& shapes);
// The same with params of each problem, for instance where their deviations follow from Nk.
Tensor SentOrDrawn(Ops& ops, const Inputs& in, absl::string_view name,
                   const std::vector<DrawParams>& params, const std::vector<Shape>& shapes);

}  // namespace attnd
