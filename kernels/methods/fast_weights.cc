// Fast weights (Schlag et al. 2021, section 4.2): linear attention whose writes replace what the
// state holds under a key. With k = nrm(phi(K)), q = nrm(phi(Q)) and a state S [F,Dv] per kv head,
// keys in order:
//   delta: S_t = S_(t-1) + beta_t k_t (x) (v_t - S_(t-1)^T k_t),  beta_t = sigmoid(beta_logits_t)
//   sum:   S_t = S_(t-1) + k_t (x) v_t
//   out_i = scale S_t^T q_i  with t = i + Nk - Nq
// attention_normalize divides by sums of keys z_t = z_(t-1) + k_t: out_i by z_t . q_i + eps and,
// for delta, with c_t = z_(t-1) . k_t (1 for the first key, unless z_0 was sent), k_t by c_t + eps
// and beta_t by 1 / c_t. c and z . q are scans over values of 1, so nothing of size N x F is
// summed. q [B,H,Nq,D], k [B,Hkv,Nk,D], v [B,Hkv,Nk,Dv]; query head h reads kv head h / (H/Hkv).
#include <cmath>
#include <optional>

#include "kernels/method/common_inputs.h"
#include "kernels/method/method.h"
#include "kernels/method/shape_rules.h"
#include "kernels/method/tensors.h"
#include "kernels/methods/linear/maps.h"
#include "kernels/methods/linear/scan_split.h"
#include "kernels/methods/linear/states.h"
#include "kernels/ops/ops.h"

namespace attnd {
namespace {

enum class UpdateRule : uint8_t { kDelta, kSum };
enum class FastMap : uint8_t { kDpfp, kEluPlusOne, kRelu, kSilu, kIdentity };
enum class FeatureNorm : uint8_t { kSum, kL2, kNone };

LinearMap LinearMapOf(FastMap map) {
  switch (map) {
    case FastMap::kDpfp:
      return LinearMap::kDpfp;
    case FastMap::kEluPlusOne:
      return LinearMap::kEluPlusOne;
    case FastMap::kRelu:
      return LinearMap::kRelu;
    case FastMap::kSilu:
      return LinearMap::kSilu;
    case FastMap::kIdentity:
      return LinearMap::kIdentity;
  }
  return LinearMap::kIdentity;
}

// Added to the squares of l2.
constexpr double kSquaresEps = 1e-6;

RowNorm RowNormOf(FeatureNorm norm) {
  switch (norm) {
    case FeatureNorm::kSum:
      return RowNorm::kSum;
    case FeatureNorm::kL2:
      return RowNorm::kL2;
    case FeatureNorm::kNone:
      return RowNorm::kNone;
  }
  return RowNorm::kNone;
}

struct FastOptions {
  UpdateRule update_rule = UpdateRule::kDelta;
  FastMap feature_map = FastMap::kDpfp;
  int64_t nu = 2;
  FeatureNorm feature_norm = FeatureNorm::kSum;
  std::optional<double> scale;  // unset: 1/sqrt(D)
  bool attention_normalize = false;
  double eps = 1e-5;
  int64_t chunk_size = 64;
  bool causal = true;
  bool return_state = false;

  bool is_delta() const { return update_rule == UpdateRule::kDelta; }
  StateOptions States(int64_t D) const {
    return {.causal = true,
            .return_state = return_state,
            .features = feature_map == FastMap::kDpfp ? 2 * nu * D : D};
  }
};

std::vector<OptionSpec<FastOptions>> Lines() {
  using O = FastOptions;
  return {
      EnumOption("update_rule", &O::update_rule, {"delta", "sum"},
                 "delta: a write replaces beta of what is stored under its key"),
      EnumOption("feature_map", &O::feature_map,
                 {"dpfp", "elu_plus_one", "relu", "silu", "identity"}, "phi"),
      ReadIf(
          "feature_map is dpfp", [](const O& o) { return o.feature_map == FastMap::kDpfp; },
          IntOption("nu", &O::nu, {.min = 1, .max = kMostNu}, "1..D, F = 2 nu D")),
      EnumOption("feature_norm", &O::feature_norm, {"sum", "l2", "none"},
                 "what divides each phi; with none, delta may diverge"),
      ScaleOption(&O::scale, "multiplies the output"),
      BoolOption("attention_normalize", &O::attention_normalize, "divide by sums of keys"),
      ReadIf(
          "attention_normalize is true", [](const O& o) { return o.attention_normalize; },
          FloatOption("eps", &O::eps, {.min = 1e-30, .max = 1e30}, "added to the sums of keys")),
      IntOption("chunk_size", &O::chunk_size, {.min = 1, .max = 256},
                "a hint to devices that work in blocks; changes rounding at most"),
      BoolOption("causal", &O::causal, absl::StrCat("must be true: ", kCausalHelp)),
      BoolOption("return_state", &O::return_state, "also answer the state after the last key"),
  };
}

std::vector<TensorInfo> FastInputs() {
  std::vector<TensorInfo> inputs = CommonInputs();
  inputs.push_back(Differentiable("beta_logits", "[B,Hkv,Nk]",
                                  "of the share that delta replaces; 1 when absent", "float32"));
  for (TensorInfo& state : StateInputs()) {
    if (state.name == "state_z") {
      state.help +=
          "; delta: the first key of a stream without it is written whole, one after zeros not at "
          "all";
    }
    inputs.push_back(std::move(state));
  }
  return inputs;
}

std::vector<TensorInfo> FastOutputs() {
  std::vector<TensorInfo> outputs = {
      {"out", "[B,H,Nq,Dv]", "float", "what queries read from the state"}};
  for (TensorInfo& state : StateOutputs()) outputs.push_back(std::move(state));
  return outputs;
}

class FastWeights : public MethodOf<FastOptions> {
 public:
  FastWeights()
      : MethodOf({.id = "fast_weights",
                  .summary = "Linear attention whose writes replace (delta rule)",
                  .reference = "Schlag et al. 2021 (arXiv 2102.11174), sections 4.2 and 5",
                  .cost = "about 6 F Dv FLOPs per token and head; memory O(n F)",
                  .inputs = FastInputs(),
                  .outputs = FastOutputs(),
                  .support = {.causal = true, .lengths = true, .cross = true, .gqa = true}},
                 Lines()) {}

 protected:
  void CheckProblem(const ProblemShape& p, const FastOptions& o, Reasons* reasons) const override {
    if (!o.causal) reasons->Invalid("causal must be true, got false");
    if (o.feature_map == FastMap::kDpfp && p.D > 0) CheckDpfp(o.nu, p.D, reasons);
    if (const View* view = p.Find("beta_logits"); view != nullptr && !o.is_delta()) {
      reasons->Invalid("beta_logits needs update_rule = delta, got ", ToString(view->shape));
    }
    for (const char* name : {"state_z", "grad_state_z"}) {
      const View* view = p.Find(name);
      if (view == nullptr || o.attention_normalize) continue;
      reasons->Invalid(name, " needs attention_normalize = true, got ", ToString(view->shape));
    }
    CheckSentStates(p, o.States(p.D), reasons);
    CheckStateGradients(p, o.States(p.D), reasons);
  }

  Outputs Formula(Ops& ops, const Inputs& in, const FastOptions& o) const override {
    const ScanSplit split(ops, in, /*causal=*/true);
    const Tensor q = Features(ops, split.Queries(in.q), o);
    const Tensor k = Features(ops, split.Keys(in.k), o), v = split.Keys(in.v);
    ScanTensors states = StatesOf(in, o.return_state, split);
    Tensor beta = split.Keys(Sent(in, "beta_logits"));
    if (!beta.empty()) beta = ops.Apply(ElementOp::kSigmoid, beta);

    ScanOut scanned;
    if (o.is_delta() && o.attention_normalize) {
      scanned = NormalizedDelta(ops, {q, k, v, beta}, in, o, split, states);
    } else {
      states.beta = beta;
      states.wants_lse = false;
      states.is_returned = true;
      scanned = ops.Scan(q, k, v, Params(in, o), split.seqs(), states);
    }
    std::map<std::string, Tensor> extra;
    if (o.return_state) extra["state_s"] = split.JoinState(scanned.s_out);
    if (o.return_state && o.attention_normalize) {
      extra["state_z"] = split.JoinState(scanned.z_out);
    }
    if (!ops.status().ok()) return {};
    return {.out = split.JoinOut(scanned.out, in.v[0].shape[3]), .extra = std::move(extra)};
  }

 private:
  // nrm(phi(x)).
  static Tensor Features(Ops& ops, const Tensor& x, const FastOptions& o) {
    return PhiOf(ops, x,
                 {LinearMapOf(o.feature_map), o.nu, RowNormOf(o.feature_norm), kSquaresEps});
  }

  static ScanParams Params(const Inputs& in, const FastOptions& o) {
    const double D = static_cast<double>(in.problems[0].D);
    const bool divides = o.attention_normalize && !o.is_delta();
    return {.map = FeatureMap::kIdentity,
            .rule = o.is_delta() ? ScanRule::kDelta : ScanRule::kSum,
            .causal = true,
            .den = divides ? ScanDen::kAdd : ScanDen::kOne,
            .eps = o.eps,
            .scale = o.scale.value_or(1 / std::sqrt(D)),
            .chunk = o.chunk_size};
  }

  struct Fast {
    Tensor q, k, v, beta;
  };

  // z . x of the rows of x, [..,1], and with final_state z after the last key as s_out. `seqs`
  // decide which keys each row sees.
  static ScanOut KeySums(Ops& ops, const Tensor& x, const Tensor& k, const FastOptions& o,
                         const ScanSeqs& seqs, const ScanTensors& states) {
    if (!ops.status().ok()) return {};
    std::vector<Shape> ones, sums;
    for (const Shape& n : ShapesOf(k)) {
      ones.push_back({n[0], n[1], n[2], 1});
      sums.push_back({n[0], n[1], n[3], 1});
    }
    const ScanParams params = {
        .map = FeatureMap::kIdentity, .causal = true, .den = ScanDen::kOne, .chunk = o.chunk_size};
    ScanTensors of_sums = {.final_state = states.final_state, .wants_lse = false};
    if (!states.z0.empty()) of_sums.s0 = ops.Reshape(states.z0, sums);
    return ops.Scan(x, k, ops.Copy(ops.Constant(1, ones)), params, seqs, of_sums);
  }

  // c_t, [B,Hkv,Nk,1]: the sum of the keys before each key, times that key.
  static Tensor Before(Ops& ops, const Tensor& k, const FastOptions& o, ScanSeqs seqs,
                       ScanTensors states) {
    for (auto& of_problem : seqs) {
      for (ScanSeq& seq : of_problem) seq.nq = seq.nk, seq.offset = -1, seq.visible_pairs = 0;
    }
    states.final_state = false;
    const Tensor c = KeySums(ops, k, k, o, seqs, states).out;
    if (!states.z0.empty() || !ops.status().ok()) return c;
    std::vector<Shape> first;
    std::vector<int64_t> begin, end;
    for (const Shape& n : ShapesOf(c)) {
      begin.push_back(std::min<int64_t>(n[2], 1));
      end.push_back(n[2]);
      first.push_back({n[0], n[1], begin.back(), 1});
    }
    return ops.Concat({ops.Constant(1, first), ops.Slice(c, 2, begin, end)}, 2);
  }

  static ScanOut NormalizedDelta(Ops& ops, const Fast& x, const Inputs& in, const FastOptions& o,
                                 const ScanSplit& split, const ScanTensors& states) {
    const Tensor c = Before(ops, x.k, o, split.seqs(), states);
    const Tensor k = ops.Apply(ElementOp::kDivide, x.k, ops.Affine(c, 1, o.eps));
    if (!ops.status().ok()) return {};
    std::vector<Shape> keys;
    for (const Shape& n : ShapesOf(c)) keys.push_back({n[0], n[1], n[2]});
    Tensor beta = ops.Reshape(c, keys);
    if (!x.beta.empty()) beta = ops.Apply(ElementOp::kMultiply, x.beta, beta);

    ScanOut scanned = ops.Scan(
        x.q, k, x.v, Params(in, o), split.seqs(),
        {.beta = beta, .s0 = states.s0, .final_state = o.return_state, .wants_lse = false});
    ScanSeqs seqs = split.seqs();
    for (auto& of_problem : seqs) {
      for (ScanSeq& seq : of_problem) seq.visible_pairs = 0;
    }
    const ScanOut sums = KeySums(ops, x.q, x.k, o, seqs, states);
    if (!ops.status().ok()) return {};
    scanned.out = ops.Apply(ElementOp::kDivide, scanned.out, ops.Affine(sums.out, 1, o.eps));
    scanned.z_out = {};
    if (o.return_state) {
      std::vector<Shape> shapes;
      for (const Shape& n : ShapesOf(sums.s_out)) shapes.push_back({n[0], n[1], n[2]});
      scanned.z_out = ops.Reshape(sums.s_out, shapes);
    }
    return scanned;
  }
};

}  // namespace

ATTND_METHOD(fast_weights, FastWeights)

}  // namespace attnd
