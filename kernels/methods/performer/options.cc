#include "kernels/methods/performer/options.h"

#include <algorithm>
#include <utility>

#include "kernels/method/common_inputs.h"

namespace attnd {
namespace {

using Kind = PerformerKind;

const std::vector<std::pair<std::string, ElementOp>>& KernelFns() {
  static const auto& fns = *new std::vector<std::pair<std::string, ElementOp>>{
      {"relu", ElementOp::kRelu},     {"relu_squared", ElementOp::kReluSquared},
      {"exp", ElementOp::kExp},       {"elu_plus_one", ElementOp::kEluPlusOne},
      {"gelu", ElementOp::kGelu},     {"sigmoid", ElementOp::kSigmoid},
      {"tanh", ElementOp::kTanh},     {"abs", ElementOp::kAbs},
      {"identity", ElementOp::kCopy}, {"cos", ElementOp::kCos},
      {"sin", ElementOp::kSin}};
  return fns;
}

OptionSpec<PerformerOptions> StabilizerLine() {
  using O = PerformerOptions;
  const std::vector<std::string> names = {"global", "prefix"};
  OptionSpec<O> line = EnumOption("stabilizer", &O::stabilizer, names,
                                  "s_k over all keys, or over those that a query sees");
  line.info.default_text = "causal: prefix, else global";
  line.set = [set = line.set](const OptionValue& v, O* o, Reasons* r) {
    o->sends_stabilizer = true;
    set(v, o, r);
  };
  line.get = [names](const O& o) {
    return o.sends_stabilizer ? std::optional<OptionValue>(names[static_cast<size_t>(o.stabilizer)])
                              : std::nullopt;
  };
  line.derived = [names](const O& o, int64_t) {
    return OptionValue(names[static_cast<size_t>(o.StabilizerOrUsual())]);
  };
  return line;
}

// A state that is sent is that of another call, whole.
void CheckState(const ProblemShape& p, const PerformerOptions& o, Reasons* reasons) {
  const std::pair<const char*, bool> needed[] = {{"state_s", true},
                                                 {"state_z", true},
                                                 {"state_shift", o.IsStabilised()},
                                                 {"state_v", o.KeepsTotals()},
                                                 {"state_n", o.KeepsTotals()}};
  const auto* sent = std::find_if(std::begin(needed), std::end(needed), [&](const auto& tensor) {
    return p.Find(tensor.first) != nullptr;
  });
  if (sent == std::end(needed)) return;
  if (!o.causal) reasons->Invalid(sent->first, " needs causal, got causal = false");
  if (o.causal && o.IsStabilised() && !o.IsRunning()) {
    reasons->Invalid("stabilizer must be prefix with ", sent->first, ", got global");
  }
  for (const auto& [name, is_needed] : needed) {
    const View* view = p.Find(name);
    if (is_needed && view == nullptr) {
      reasons->Invalid(name, " is required with ", sent->first, ", got none");
    } else if (!is_needed && view != nullptr) {
      reasons->Invalid(name,
                       o.IsStabilised() ? " needs feature_eps > 0, got "
                                        : " must be absent with kind generalized, got ",
                       ToString(view->shape));
    }
  }
}

}  // namespace

ElementOp KernelFnOf(const PerformerOptions& o) {
  return KernelFns()[static_cast<size_t>(o.kernel_fn)].second;
}

OptionSpec<PerformerOptions> ReturnStateLine() {
  using O = PerformerOptions;
  OptionSpec<O> line = BoolOption(
      "return_state", &O::return_state,
      "causal: also answer the state after the last key; with stabilizer global no call takes it "
      "back");
  line.note = [](const O& o, const ProblemShape&) -> std::string {
    const bool is_global = o.IsStabilised() && o.StabilizerOrUsual() == O::Stabilizer::kGlobal;
    return o.causal && is_global ? "answers a state that no call takes, as stabilizer is global"
                                 : "";
  };
  return line;
}

std::vector<OptionSpec<PerformerOptions>> PerformerLines() {
  using O = PerformerOptions;
  const FloatRange eps = {.min = 0, .max = 1e30};
  const FloatRange feature = {.min = 0, .max = 1e15};  // its square is summed in float32
  std::vector<std::string> fns;
  for (const auto& [name, op] : KernelFns()) fns.push_back(name);
  return {
      EnumOption("kind", &O::kind, {"positive", "hyperbolic", "trig", "generalized"}, "phi"),
      ReadIf(
          "features are projected", [](const O& o) { return o.IsProjected(); },
          IntOption("num_features", &O::num_features, {.min = 1, .max = 65536}, 256,
                    "m: rows of a drawn omega")),
      ReadIf(
          "omega is drawn",
          [](const O& o, const ProblemShape& p) {
            return o.IsProjected() && p.Find("omega") == nullptr;
          },
          BoolOption("orthogonal", &O::orthogonal,
                     "orthogonal rows in blocks of D, else independent")),
      ReadIf(
          "omega is drawn and orthogonal",
          [](const O& o, const ProblemShape& p) {
            return o.IsProjected() && o.orthogonal && p.Find("omega") == nullptr;
          },
          EnumOption("norms", &O::norms, {"chi", "sqrt_d"}, "lengths of orthogonal rows")),
      FloatOption("feature_eps", &O::feature_eps, feature, "1e-6; generalized 1e-3; trig 0",
                  "added to every feature",
                  [](const O& o, int64_t) { return OptionValue(o.FeatureEps()); }),
      ReadIf(
          "causal is true and kind is not generalized",
          [](const O& o) { return o.causal && o.IsStabilised(); }, StabilizerLine()),
      ReadIf(
          "renormalize is true", [](const O& o) { return o.renormalize; },
          FloatOption("den_eps", &O::den_eps, eps, "1e-6; generalized 0",
                      "2 den_eps is added to normalisers within +-den_eps",
                      [](const O& o, int64_t) { return OptionValue(o.DenEps()); })),
      BoolOption("renormalize", &O::renormalize, "false: out = sum exp(s_q + s_k), no division"),
      ReadIf(
          "kind is generalized", [](const O& o) { return o.Is(Kind::kGeneralized); },
          EnumOption("kernel_fn", &O::kernel_fn, fns, "phi of kind generalized")),
      ReadIf(
          "kind is generalized", [](const O& o) { return o.Is(Kind::kGeneralized); },
          BoolOption("project", &O::project, "false: no omega, F = D")),
      ReadIf(
          "kind is generalized and project is true",
          [](const O& o) { return o.Is(Kind::kGeneralized) && o.project; },
          BoolOption("feature_ratio", &O::feature_ratio, "kernel_fn takes m^-1/2 u")),
      ReadIf(
          "omega is drawn",
          [](const O& o, const ProblemShape& p) {
            return o.IsProjected() && p.Find("omega") == nullptr;
          },
          IntOption("redraw", &O::redraw, {.min = 0},
                    "each value draws another omega of one seed")),
      ScaleOption(&O::scale, "q and k are multiplied by its root"),
      CausalOption(&O::causal),
      ReturnStateLine(),
      SeedOption(&O::seed),
  };
}

std::vector<TensorInfo> PerformerInputs() {
  std::vector<TensorInfo> inputs = CommonInputs();
  inputs.push_back(OmegaInput("directions of the features; a constant, drawn when absent"));
  for (TensorInfo& state : StateInputs()) inputs.push_back(std::move(state));
  inputs.push_back({.name = "state_shift",
                    .shape = "[B,Hkv]",
                    .dtype = "float32",
                    .help = "s_k that the state is relative to; a constant"});
  inputs.push_back(Differentiable("state_v", "[B,Hkv,Dv]",
                                  "with feature_eps: sums of the values in the state", "float32"));
  inputs.push_back({.name = "state_n",
                    .shape = "[B]",
                    .dtype = "float32",
                    .help = "with feature_eps: number of the keys in the state; a constant"});
  return inputs;
}

std::vector<TensorInfo> PerformerOutputs() {
  std::vector<TensorInfo> outputs = {
      {"out", "[B,H,Nq,Dv]", "float", "sums of values by feature"},
      {"lse", "[B,H,Nq]", "float32",
       "natural log of the normaliser, an estimate of that of softmax; -inf: no key, NaN: it is "
       "not positive"}};
  for (TensorInfo& state : StateOutputs()) outputs.push_back(std::move(state));
  outputs.push_back(
      {.name = "state_shift",
       .shape = "[B,Hkv]",
       .dtype = "float32",
       .help = "with return_state: the largest s_k, -inf: no key; none of generalized",
       .is_constant = true});
  outputs.push_back({.name = "state_v",
                     .shape = "[B,Hkv,Dv]",
                     .dtype = "float32",
                     .help = "with return_state and feature_eps > 0, but for generalized"});
  outputs.push_back({.name = "state_n",
                     .shape = "[B]",
                     .dtype = "float32",
                     .help = "with state_v",
                     .is_constant = true});
  return outputs;
}

void CheckPerformer(const ProblemShape& p, const PerformerOptions& o, Reasons* reasons) {
  if (o.Is(Kind::kTrig) && o.FeatureEps() > 0) {
    reasons->Invalid("feature_eps must be 0 with kind trig, got ", o.FeatureEps());
  }
  if (o.IsProjected()) {
    CheckOmega(p, o.Omega(), reasons);
  } else if (const View* omega = p.Find("omega"); omega != nullptr) {
    reasons->Invalid("omega must be absent with project = false, got ", ToString(omega->shape));
  }
  const StateOptions states = o.States(p);
  CheckReturnState(states, reasons);
  CheckState(p, o, reasons);
  CheckSentStates(p, states, reasons);
  CheckStateGradients(p, states, reasons);
  if (const View* grad = p.Find("grad_state_v"); grad != nullptr) {
    const bool is_returned = o.return_state && o.KeepsTotals();
    if (!is_returned) {
      reasons->Invalid("grad_state_v needs return_state and feature_eps > 0, got ",
                       ToString(grad->shape));
    }
  }
}

}  // namespace attnd
