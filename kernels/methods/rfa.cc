// Random feature attention (Peng et al. 2021, theorem 1, eq. 3-8): with q and k of norm 1, exp(q.k)
// is proportional to a Gaussian kernel, estimated by u = W x, W = omega sigma / tau, and
//   trig    phi = feature_scale [sin u, cos u]
//   arccos  phi = feature_scale max(u, 0)
//   out_i = num_i / den(d_i), the sums of linear attention
// gated, causal: a state that forgets, with gamma_t = sigmoid(gate_logits_t),
//   S_t = gamma_t S_(t-1) + (1 - gamma_t) phi_k,t (x) v_t, and z_t likewise.
#include <cmath>
#include <optional>

#include "kernels/method/common_inputs.h"
#include "kernels/method/method.h"
#include "kernels/method/tensors.h"
#include "kernels/methods/linear/omega.h"
#include "kernels/methods/linear/states.h"
#include "kernels/ops/feature_map.h"
#include "kernels/ops/ops.h"

namespace attnd {
namespace {

enum class RfaFeature : uint8_t { kTrig, kArccos };
enum class DenMode : uint8_t { kClamp, kAbsClamp, kNone };

struct RfaOptions {
  RfaFeature feature = RfaFeature::kTrig;
  std::optional<int64_t> num_features;
  bool gated = false;
  bool qk_norm = true;
  double norm_eps = 0;
  double tau = 1;
  std::optional<double> feature_scale;  // unset: m^-1/2
  DenMode den_mode = DenMode::kClamp;
  double den_min = 1e-6;
  bool orthogonal = false;
  bool causal = false;
  bool return_state = false;
  uint64_t seed = 0;

  OmegaOptions Omega() const {
    return {.num_features = num_features,
            .usual_features = 64,
            .per_head = true,
            .draw = {.seed = seed,
                     .name = "omega",
                     .distribution =
                         orthogonal ? Distribution::kOrthogonalRows : Distribution::kNormal}};
  }
  StateOptions States(const ProblemShape& p) const {
    const int64_t m = FeaturesOf(p, Omega());
    return {.causal = causal,
            .return_state = return_state,
            .features = feature == RfaFeature::kTrig ? 2 * m : m};
  }
};

std::vector<OptionSpec<RfaOptions>> Lines() {
  using O = RfaOptions;
  // Features are products of these and their products are summed: all in the range of float32.
  const FloatRange divisor = {.min = 1e-15, .max = 1e30}, factor = {.min = 1e-15, .max = 1e15};
  const FloatRange not_negative = {.min = 0, .max = 1e30};
  return {
      EnumOption("feature", &O::feature, {"trig", "arccos"}, "phi"),
      IntOption("num_features", &O::num_features, {.min = 1, .max = 65536}, 64,
                "m: rows of a drawn omega"),
      BoolOption("gated", &O::gated, "causal: the state decays by sigmoid(gate_logits)"),
      BoolOption("qk_norm", &O::qk_norm, "divide q and k by their norms"),
      ReadIf(
          "qk_norm is true", [](const O& o) { return o.qk_norm; },
          FloatOption("norm_eps", &O::norm_eps, not_negative, "added to those norms")),
      FloatOption("tau", &O::tau, divisor, "temperature: divides omega"),
      FloatOption("feature_scale", &O::feature_scale, factor, "m^-1/2", "multiplies features"),
      EnumOption("den_mode", &O::den_mode, {"clamp", "abs_clamp", "none"},
                 "divisor: max(d, den_min), max(|d|, den_min) or d"),
      ReadIf(
          "den_mode clamps", [](const O& o) { return o.den_mode != DenMode::kNone; },
          FloatOption("den_min", &O::den_min, not_negative, "least divisor")),
      ReadIf(
          "omega is drawn",
          [](const O&, const ProblemShape& p) { return p.Find("omega") == nullptr; },
          BoolOption("orthogonal", &O::orthogonal,
                     "orthogonal rows in blocks of D, else independent")),
      CausalOption(&O::causal),
      BoolOption("return_state", &O::return_state,
                 "causal: also answer the state after the last key"),
      SeedOption(&O::seed),
  };
}

std::vector<TensorInfo> RfaInputs() {
  std::vector<TensorInfo> inputs = CommonInputs();
  inputs.push_back(OmegaInput("directions of the features; a constant, drawn when absent"));
  inputs.push_back(Differentiable("sigma", "[Hkv,D]", "multiplies omega; ones when absent"));
  inputs.push_back(
      Differentiable("gate_logits", "[B,Hkv,Nk]", "with gated; 3 everywhere when absent"));
  for (TensorInfo& state : StateInputs()) inputs.push_back(std::move(state));
  return inputs;
}

std::vector<TensorInfo> RfaOutputs() {
  std::vector<TensorInfo> outputs = {{"out", "[B,H,Nq,Dv]", "float", "sums of values by feature"}};
  for (TensorInfo& state : StateOutputs()) outputs.push_back(std::move(state));
  return outputs;
}

class Rfa : public MethodOf<RfaOptions> {
 public:
  Rfa()
      : MethodOf({.id = "rfa",
                  .summary = "Random feature attention, with a gate",
                  .reference = "Peng et al. 2021 (arXiv 2103.02143), theorem 1 and eq. 3-8",
                  .cost = "about 4 F (D + Dv) FLOPs per token and head; memory O(n F)",
                  .inputs = RfaInputs(),
                  .outputs = RfaOutputs(),
                  .support = {.causal = true, .lengths = true, .cross = true, .gqa = true}},
                 Lines()) {}

 protected:
  void CheckProblem(const ProblemShape& p, const RfaOptions& o, Reasons* reasons) const override {
    CheckOmega(p, o.Omega(), reasons);
    if (o.gated && !o.causal) reasons->Invalid("gated needs causal, got causal = false");
    if (const View* gate = p.Find("gate_logits"); gate != nullptr && !o.gated) {
      reasons->Invalid("gate_logits needs gated, got gated = false");
    }
    const StateOptions states = o.States(p);
    CheckReturnState(states, reasons);
    CheckSentStates(p, states, reasons);
    CheckStateGradients(p, states, reasons);
  }

  // A scan takes one number of features a launch.
  std::string BranchOf(const ProblemShape& p, const RfaOptions& o) const override {
    return "F=" + std::to_string(o.States(p).features);
  }

  Outputs Formula(Ops& ops, const Inputs& in, const RfaOptions& o) const override {
    const ScanSplit split(ops, in, o.causal);
    const Tensor keys = split.Keys(in.k);
    const Tensor w = split.Shared(Directions(ops, in, o));
    const Tensor phi_q = Features(ops, Normed(ops, split.Queries(in.q), o), w, o);
    const Tensor phi_k = Features(ops, Normed(ops, keys, o), w, o);
    ScanTensors tensors = StatesOf(in, o.return_state, split);
    tensors.wants_lse = false;
    tensors.is_returned = true;
    if (o.gated) SetGate(ops, in, split, keys, &tensors);
    const ScanDen dens[] = {ScanDen::kClamp, ScanDen::kAbsClamp, ScanDen::kAdd};
    const bool is_plain = o.den_mode == DenMode::kNone;
    const ScanParams params = {.map = FeatureMap::kIdentity,
                               .causal = o.causal,
                               .den = dens[static_cast<size_t>(o.den_mode)],
                               .eps = is_plain ? 0 : o.den_min};
    ScanOut scanned = ops.Scan(phi_q, phi_k, split.Keys(in.v), params, split.seqs(), tensors);
    scanned.s_out = split.JoinState(scanned.s_out);
    scanned.z_out = split.JoinState(scanned.z_out);
    return {.out = split.JoinOut(scanned.out, in.v[0].shape[3]),
            .extra = StateResults(scanned, o.return_state)};
  }

 private:
  // omega sigma [Hkv|1,m,D] of every problem: its sequences share one product.
  static Tensor Directions(Ops& ops, const Inputs& in, const RfaOptions& o) {
    const Tensor omega = Omega(ops, in, o.Omega());
    const Tensor sigma = Sent(in, "sigma");  // [Hkv,D]
    if (sigma.empty() || !ops.status().ok()) return omega;
    std::vector<Shape> rows, full;
    for (size_t p = 0; p < sigma.size(); ++p) {
      const Shape &s = sigma[p].shape, &w = omega[p].shape;
      rows.push_back({s[0], 1, s[1]});
      full.push_back({s[0], w[1], w[2]});
    }
    return ops.Apply(ElementOp::kMultiply, ops.Expand(omega, full), ops.Reshape(sigma, rows));
  }

  // x / (|x| + norm_eps); a row of zeros stays so, and has no gradient through its norm.
  static Tensor Normed(Ops& ops, const Tensor& x, const RfaOptions& o) {
    if (!o.qk_norm) return x;
    return FeaturesOf(ops, x, {.norm = RowNorm::kL2, .offset = o.norm_eps});
  }

  static Tensor Features(Ops& ops, const Tensor& x, const Tensor& w, const RfaOptions& o) {
    if (!ops.status().ok()) return {};
    const double scale =
        o.feature_scale.value_or(1 / std::sqrt(static_cast<double>(w[0].shape[2])));
    const bool is_trig = o.feature == RfaFeature::kTrig;
    return ops
        .RandomFeatures(x, w,
                        {.feature = is_trig ? RandomFeature::kSinCos : RandomFeature::kMapped,
                         .alpha = 1 / o.tau,
                         .factor = scale,
                         .map = ElementOp::kRelu})
        .phi;
  }

  static void SetGate(Ops& ops, const Inputs& in, const ScanSplit& split, const Tensor& keys,
                      ScanTensors* tensors) {
    if (!ops.status().ok()) return;
    constexpr float kUsualLogit = 3;
    Tensor logits = split.Keys(Sent(in, "gate_logits"));
    std::vector<Shape> columns, flat;
    for (size_t p = 0; p < keys.size(); ++p) {
      const Shape& k = keys[p].shape;
      const Shape shape = logits.empty() ? Shape{1, 1, k[2]} : logits[p].shape;
      flat.push_back(shape);
      columns.push_back({shape[0], shape[1], shape[2], 1});
    }
    if (logits.empty()) logits = ops.Constant(kUsualLogit, flat);
    tensors->log_decay = ops.Reshape(ops.Apply(ElementOp::kLogSigmoid, logits), columns);
    tensors->beta = ops.Apply(ElementOp::kSigmoid, ops.Affine(logits, -1));
  }
};

}  // namespace

ATTND_METHOD(rfa, Rfa)

}  // namespace attnd
