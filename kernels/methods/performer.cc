// Performer (Choromanski et al. 2021, lemma 1 and algorithm 1): exp(scale q.k) is estimated by
// phi_q.phi_k of random features, then attention is linear. With x = sqrt(scale) q, u = omega x and
// h = |x|^2 / 2,
//   positive    phi = m^-1/2 (exp(u - h - s) + feature_eps)
//   hyperbolic  the same over u and -u, (2m)^-1/2
//   trig        m^-1/2 exp(h - s) [cos u, sin u]
//   generalized kernel_fn(u) + feature_eps, with feature_ratio kernel_fn(m^-1/2 u)
//   out_i = num_i / (d_i + 2 den_eps where |d_i| <= den_eps),  lse_i = log d_i + s_q + s_k
// The stabilisers s are constants: s_q the largest u of a row, s_k that of the keys; trig: h.
// Stabilizer prefix takes s_k over the keys that a query sees.
#include <cmath>
#include <limits>
#include <optional>

#include "kernels/method/common_inputs.h"
#include "kernels/method/method.h"
#include "kernels/methods/linear/omega.h"
#include "kernels/methods/linear/running.h"
#include "kernels/methods/linear/states.h"
#include "kernels/ops/ops.h"

namespace attnd {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int kKeys = 2;  // the axis of keys

enum class Kind : uint8_t { kPositive, kHyperbolic, kTrig, kGeneralized };
enum class Stabilizer : uint8_t { kGlobal, kPrefix };

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
enum class KernelFn : uint8_t {};  // a place in KernelFns()

struct PerformerOptions {
  Kind kind = Kind::kPositive;
  std::optional<int64_t> num_features;
  bool orthogonal = true;
  RowNorms norms = RowNorms::kChi;
  std::optional<double> feature_eps, den_eps;
  Stabilizer stabilizer = Stabilizer::kGlobal;
  bool sends_stabilizer = false;
  bool renormalize = true;
  KernelFn kernel_fn{};
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
  // Whether the keys' stabiliser differs from query to query.
  bool IsRunning() const {
    return causal && StabilizerOrUsual() == Stabilizer::kPrefix && !Is(Kind::kGeneralized);
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

std::vector<OptionSpec<PerformerOptions>> Lines() {
  using O = PerformerOptions;
  const FloatRange eps = {.min = 0, .max = 1e30};
  const FloatRange feature = {.min = 0, .max = 1e15};  // its square is summed in float32
  std::vector<std::string> fns;
  for (const auto& [name, op] : KernelFns()) fns.push_back(name);
  return {
      EnumOption("kind", &O::kind, {"positive", "hyperbolic", "trig", "generalized"}, "phi"),
      IntOption("num_features", &O::num_features, {.min = 1, .max = 65536}, 256,
                "m: rows of a drawn omega"),
      BoolOption("orthogonal", &O::orthogonal, "orthogonal rows in blocks of D, else independent"),
      EnumOption("norms", &O::norms, {"chi", "sqrt_d"}, "lengths of orthogonal rows"),
      FloatOption("feature_eps", &O::feature_eps, feature, "1e-6; generalized 1e-3; trig 0",
                  "added to every feature",
                  [](const O& o, int64_t) { return OptionValue(o.FeatureEps()); }),
      StabilizerLine(),
      FloatOption("den_eps", &O::den_eps, eps, "1e-6; generalized 0",
                  "2 den_eps is added to normalisers within +-den_eps",
                  [](const O& o, int64_t) { return OptionValue(o.DenEps()); }),
      BoolOption("renormalize", &O::renormalize, "false: out = sum exp(s_q + s_k), no division"),
      EnumOption("kernel_fn", &O::kernel_fn, fns, "of kind generalized"),
      BoolOption("project", &O::project, "for kind generalized; false: no omega, F = D"),
      BoolOption("feature_ratio", &O::feature_ratio,
                 "for kind generalized: kernel_fn takes m^-1/2 u"),
      IntOption("redraw", &O::redraw, {.min = 0}, "each value draws another omega of one seed"),
      ScaleOption(&O::scale, "q and k are multiplied by its root"),
      BoolOption("causal", &O::causal, "query i sees keys j <= i + Nk - Nq"),
      BoolOption("return_state", &O::return_state,
                 "causal: also answer the state after the last key, at the largest s_k"),
      SeedOption(&O::seed),
  };
}

std::vector<TensorInfo> PerformerInputs() {
  std::vector<TensorInfo> inputs = CommonInputs();
  inputs.push_back(OmegaInput("directions of the features; a constant, drawn when absent"));
  return inputs;
}

std::vector<TensorInfo> PerformerOutputs() {
  std::vector<TensorInfo> outputs = {
      {"out", "[B,H,Nq,Dv]", "float", "sums of values by feature"},
      {"lse", "[B,H,Nq]", "float32",
       "natural log of the normaliser, an estimate of that of softmax; -inf: no key, NaN: it is "
       "not positive"}};
  for (TensorInfo& state : StateOutputs()) outputs.push_back(std::move(state));
  return outputs;
}

// The estimate of one list of requests.
class Estimate {
 public:
  Estimate(Ops& ops, const Inputs& in, const PerformerOptions& o)
      : ops_(ops), in_(in), o_(o), split_(ops, in, o.causal) {}

  Outputs Run();

 private:
  // phi of rows, and the stabilisers [..,N|1,1] that it is relative to.
  struct Phi {
    Tensor phi, shift;
    // Of a running stabiliser: how much earlier keys lose when a key raises it, and the weight of
    // a key, whose phi is relative to its own row.
    Tensor log_decay, weight;
  };
  Tensor Add(const Tensor& a, const Tensor& b) { return ops_.Apply(ElementOp::kAdd, a, b); }
  Tensor Minus(const Tensor& a, const Tensor& b) { return ops_.Apply(ElementOp::kSubtract, a, b); }
  Tensor Times(const Tensor& a, const Tensor& b) { return ops_.Apply(ElementOp::kMultiply, a, b); }
  Tensor Number(double value, const Tensor& like) {
    return NumberLike(ops_, static_cast<float>(value), like);
  }
  double Root() const { return std::sqrt(o_.Scale(in_.problems[0].D)); }
  // The features of positive kinds have factors F^-1/2, and so has the feature_eps added to them.
  double Factor() const {
    const double counted = o_.Is(Kind::kTrig) ? 0.5 : 1;
    return 1 / std::sqrt(counted * static_cast<double>(features_));
  }
  double Eps() const { return o_.FeatureEps() * (o_.Is(Kind::kGeneralized) ? 1 : Factor()); }
  // Whether it is added to queries and keys apart, else the scan adds it to the features of both:
  // their gradients then follow from what is stored.
  bool AddsEps() const { return o_.IsRunning() && o_.FeatureEps() > 0; }
  void ReadInputs();
  Phi Running(const RandomFeaturesOut& of_rows);
  Phi Features(const Tensor& x, bool is_key);
  Phi Generalized(const Tensor& x);
  Tensor Shift(const Phi& q, const Phi& k);
  Tensor Unstabilised(const Tensor& out, const Tensor& shift, const Tensor& lse);

  Ops& ops_;
  const Inputs& in_;
  const PerformerOptions& o_;
  const ScanSplit split_;
  Tensor q_, k_, v_, omega_;
  int64_t features_ = 1;  // F
};

// out e^shift, and out where no key is seen: such a row's sum is 0, which infinity must not meet.
// By two factors e^(shift / 2): out may be in the range of float32 where e^shift is not. Neither is
// infinite, so that a gradient of 0 stays 0; out e^176 is, for any normal out but 0.
Tensor Estimate::Unstabilised(const Tensor& out, const Tensor& shift, const Tensor& lse) {
  constexpr float kMostHalf = 88;
  const Tensor of_rows = ops_.Reshape(lse, ShapesOf(shift));
  if (!ops_.status().ok()) return {};
  const Tensor is_empty = ops_.Apply(ElementOp::kEqual, of_rows, Number(-kInf, of_rows));
  const Tensor half = ops_.Affine(ops_.Select(is_empty, Number(0, shift), shift), 0.5);
  const Tensor least = ops_.Apply(ElementOp::kMinimum, half, Number(kMostHalf, shift));
  const Tensor factor = ops_.Apply(ElementOp::kExp, least);
  return Times(Times(out, factor), factor);
}

void Estimate::ReadInputs() {
  q_ = split_.Queries(in_.q);
  k_ = split_.Keys(in_.k);
  v_ = split_.Keys(in_.v);
  // Two scans read v: their gradients are added before they are rounded.
  if (AddsEps() && in_.v[0].dtype != DType::kF32) v_ = ops_.Copy(v_);
  features_ = o_.States(in_.problems[0]).features;
  if (!o_.IsProjected()) return;
  omega_ = Omega(ops_, in_, o_.Omega(), split_);
}

// Keys whose stabiliser is the largest of the rows so far.
Estimate::Phi Estimate::Running(const RandomFeaturesOut& of_rows) {
  const Tensor& rows = of_rows.shift;
  const Tensor shift = ops_.Cumulative(CumulativeOp::kMax, rows, kKeys);
  const Tensor before = ops_.Cumulative(CumulativeOp::kMax, rows, kKeys, /*exclusive=*/true);
  if (!ops_.status().ok()) return {};
  std::vector<Shape> flat;
  for (const Shape& s : ShapesOf(rows)) flat.push_back({s[0], s[1], s[2]});
  const Tensor is_first = ops_.Apply(ElementOp::kEqual, before, Number(-kInf, before));
  return {.phi = of_rows.phi,
          .shift = shift,
          .log_decay = ops_.Select(is_first, Number(0, before), Minus(before, shift)),
          .weight = ops_.Reshape(ops_.Apply(ElementOp::kExp, Minus(rows, shift)), flat)};
}

Estimate::Phi Estimate::Features(const Tensor& x, bool is_key) {
  if (o_.Is(Kind::kGeneralized)) return Generalized(x);
  // The scan adds feature_eps; with a running stabiliser AddToKeys what it does to keys.
  const bool is_running = is_key && o_.IsRunning();
  const RandomFeaturesOut made =
      ops_.RandomFeatures(x, omega_,
                          {.feature = o_.Is(Kind::kTrig)         ? RandomFeature::kCosSin
                                      : o_.Is(Kind::kHyperbolic) ? RandomFeature::kCosh
                                                                 : RandomFeature::kExp,
                           .alpha = Root(),
                           .factor = Factor(),
                           .eps = AddsEps() && !is_key ? o_.FeatureEps() : 0,
                           .shares_shift = is_key && !is_running});
  if (is_running) return Running(made);
  return {.phi = made.phi, .shift = made.shift};
}

Estimate::Phi Estimate::Generalized(const Tensor& x) {
  const ElementOp fn = KernelFns()[static_cast<size_t>(o_.kernel_fn)].second;
  const double ratio = o_.feature_ratio ? 1 / std::sqrt(static_cast<double>(features_)) : 1;
  if (o_.project) {
    return {.phi = ops_.RandomFeatures(
                           x, omega_,
                           {.feature = RandomFeature::kMapped, .alpha = Root() * ratio, .map = fn})
                       .phi};
  }
  return {.phi = ops_.Apply(fn, ops_.Affine(x, Root()))};
}

// s_q + s_k of every query, [B,H,Nq,1].
Tensor Estimate::Shift(const Phi& q, const Phi& k) {
  if (q.shift.empty() || !ops_.status().ok()) return {};
  const Tensor of_keys = o_.IsRunning() ? LastSeen(ops_, k.shift, ShapesOf(q_), split_) : k.shift;
  if (!ops_.status().ok()) return {};
  std::vector<Shape> grouped, keys;
  for (size_t p = 0; p < q_.size(); ++p) {
    const Shape &s = q.shift[p].shape, &t = of_keys[p].shape;
    grouped.push_back({s[0], t[1], s[1] / t[1], s[2], 1});
    keys.push_back({t[0], t[1], 1, t[2], 1});
  }
  const Tensor sum = Add(ops_.Reshape(q.shift, grouped), ops_.Reshape(of_keys, keys));
  return ops_.Reshape(sum, ShapesOf(q.shift));
}

Outputs Estimate::Run() {
  ReadInputs();
  const Phi q = Features(q_, false), k = Features(k_, true);
  const ScanParams params = {.map = FeatureMap::kIdentity,
                             .offset = AddsEps() ? 0 : Eps(),
                             .causal = o_.causal,
                             .den = AddsEps() || !o_.renormalize ? ScanDen::kOne : ScanDen::kJax,
                             .eps = o_.DenEps()};
  ScanOut scanned = ops_.Scan(q.phi, k.phi, v_, params, split_.seqs(),
                              {.log_decay = k.log_decay,
                               .beta = k.weight,
                               .final_state = o_.return_state,
                               .is_returned = !AddsEps() && o_.renormalize});
  if (AddsEps()) {
    const ConstantFeature constant = {
        .eps = Eps(), .den_eps = o_.DenEps(), .is_normalised = o_.renormalize};
    AddToKeys(ops_, constant, q.phi, v_, split_, &scanned);
  }
  const Tensor shift = Shift(q, k);
  if (!ops_.status().ok()) return {};
  if (!shift.empty()) {
    if (!o_.renormalize) scanned.out = Unstabilised(scanned.out, shift, scanned.lse);
    scanned.lse = Add(scanned.lse, ops_.Reshape(shift, ShapesOf(scanned.lse)));
  }
  scanned.s_out = split_.JoinState(scanned.s_out);
  scanned.z_out = split_.JoinState(scanned.z_out);
  return {.out = split_.JoinOut(scanned.out, in_.v[0].shape[3]),
          .lse = split_.JoinLse(scanned.lse),
          .extra = StateResults(scanned, o_.return_state)};
}

class Performer : public MethodOf<PerformerOptions> {
 public:
  Performer()
      : MethodOf(
            {.id = "performer",
             .summary = "Estimates softmax attention by random features",
             .reference = "Choromanski et al. 2021 (arXiv 2009.14794), lemma 1 and algorithm 1",
             .cost = "about 4 F (D + Dv) FLOPs per token and head; memory O(n F)",
             .inputs = PerformerInputs(),
             .outputs = PerformerOutputs(),
             .support = {.causal = true, .lengths = true, .cross = true, .gqa = true, .lse = true}},
            Lines()) {}

 protected:
  void CheckProblem(const ProblemShape& p, const PerformerOptions& o,
                    Reasons* reasons) const override {
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
    CheckStateGradients(p, states, reasons);
  }

  // A scan takes one number of features a launch.
  std::string BranchOf(const ProblemShape& p, const PerformerOptions& o) const override {
    return "F=" + std::to_string(o.States(p).features);
  }

  Outputs Formula(Ops& ops, const Inputs& in, const PerformerOptions& o) const override {
    return Estimate(ops, in, o).Run();
  }
};

}  // namespace

ATTND_METHOD(performer, Performer)

}  // namespace attnd
