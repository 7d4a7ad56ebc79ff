// The formula of a plan, forward or with its gradients.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/engine/engine.h"
#include "kernels/ops/attend.h"
#include "kernels/ops/draw_cache.h"
#include "kernels/ops/tensor.h"
#include "kernels/pattern/cache.h"

namespace attnd {

// The results of a formula, by the names of the API, and the pairs and FLOPs of its forward.
struct RunResult {
  std::vector<std::pair<std::string, Tensor>> outputs;
  double forward_pairs = 0, forward_flops = 0;
  bool estimates_pairs = false;          // Ops::estimates_pairs of the forward
  std::vector<PairTotal> visible_pairs;  // Outputs::visible_pairs
};

// What the problem in place p took: its plan's figures, or by the pairs that the formula tells.
ProblemCost CostOf(const Plan& plan, const RunResult& run, size_t p);

// What runs leave for later ones; null: nothing.
struct Caches {
  PatternCache* patterns = nullptr;
  DrawCache* draws = nullptr;
};

// Runs it on `sent`, one tensor of each name over all `problems`; the same for a plan (dry stream,
// views without data) and for a real run.
absl::StatusOr<RunResult> RunFormula(Stream& stream, const Caches& caches, const Plan& plan,
                                     const std::map<std::string, Tensor>& sent,
                                     std::span<const ProblemShape> problems);

}  // namespace attnd
