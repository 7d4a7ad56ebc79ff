// Options, tensors and rules of performer.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "kernels/device/elementwise.h"
#include "kernels/method/info.h"
#include "kernels/method/options.h"
#include "kernels/method/problem.h"
#include "kernels/methods/linear/omega.h"
#include "kernels/methods/linear/states.h"

namespace attnd {

enum class PerformerKind : uint8_t { kPositive, kHyperbolic, kTrig, kGeneralized };
enum class PerformerStabilizer : uint8_t { kGlobal, kPrefix };
enum class PerformerFn : uint8_t {};  // a place in the list of kernel_fn

struct PerformerOptions {
  using Kind = PerformerKind;
  using Stabilizer = PerformerStabilizer;

  Kind kind = Kind::kPositive;
  std::optional<int64_t> num_features;
  bool orthogonal = true;
  RowNorms norms = RowNorms::kChi;
  std::optional<double> feature_eps, den_eps;
  Stabilizer stabilizer = Stabilizer::kGlobal;
  bool sends_stabilizer = false;
  bool renormalize = true;
  PerformerFn kernel_fn{};
  bool project = true;
  bool feature_ratio = false;
  int64_t redraw = 0;
  std::optional<double> scale;  // unset: 1/sqrt(D)
  bool causal = false;
  bool return_state = false;
  uint64_t seed = 0;

  bool Is(Kind other) const { return kind == other; }
  bool IsProjected() const { return project || !Is(Kind::kGeneralized); }
  double FeatureEps() const {
    return feature_eps.value_or(Is(Kind::kTrig) ? 0 : Is(Kind::kGeneralized) ? 1e-3 : 1e-6);
  }
  double DenEps() const { return den_eps.value_or(Is(Kind::kGeneralized) ? 0 : 1e-6); }
  double Scale(int64_t D) const { return scale.value_or(1 / std::sqrt(static_cast<double>(D))); }
  Stabilizer StabilizerOrUsual() const {
    if (sends_stabilizer) return stabilizer;
    return causal ? Stabilizer::kPrefix : Stabilizer::kGlobal;
  }
  bool IsStabilised() const { return !Is(Kind::kGeneralized); }
  // Whether a state comes with the sums of values and the number of keys that feature_eps
  // multiplies: a stabiliser that rises scales the rest of it.
  bool KeepsTotals() const { return IsStabilised() && FeatureEps() > 0; }
  // Whether the keys' stabiliser differs from query to query.
  bool IsRunning() const {
    return causal && StabilizerOrUsual() == Stabilizer::kPrefix && IsStabilised();
  }
  OmegaOptions Omega() const {
    return {
        .num_features = num_features,
        .usual_features = 256,
        .draw = {.seed = seed,
                 .name = "omega",
                 .suffix = redraw > 0 ? "#" + std::to_string(redraw) : "",
                 .distribution = orthogonal ? Distribution::kOrthogonalRows : Distribution::kNormal,
                 .norms = norms}};
  }
  StateOptions States(const ProblemShape& p) const {
    const int64_t m = IsProjected() ? FeaturesOf(p, Omega()) : p.D;
    const bool is_double = Is(Kind::kHyperbolic) || Is(Kind::kTrig);
    return {.causal = causal, .return_state = return_state, .features = is_double ? 2 * m : m};
  }
};

ElementOp KernelFnOf(const PerformerOptions& o);

std::vector<OptionSpec<PerformerOptions>> PerformerLines();
std::vector<TensorInfo> PerformerInputs();
std::vector<TensorInfo> PerformerOutputs();
void CheckPerformer(const ProblemShape& p, const PerformerOptions& o, Reasons* reasons);

}  // namespace attnd
