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
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "kernels/method/common_inputs.h"
#include "kernels/method/method.h"
#include "kernels/method/tensors.h"
#include "kernels/methods/linear/omega.h"
#include "kernels/methods/linear/running.h"
#include "kernels/methods/linear/states.h"
#include "kernels/methods/performer/options.h"
#include "kernels/ops/ops.h"

namespace attnd {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int kKeys = 2;  // the axis of keys

using Kind = PerformerKind;

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
    // a key, whose phi is relative to its own row. With a state `shift` [..,1 + N,1] begins with
    // that before all keys.
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
  bool HasState() const { return o_.return_state || in_.tensors.contains("state_s"); }
  Tensor SentState(const std::string& name) const;
  void ReadInputs();
  Phi Running(const RandomFeaturesOut& of_rows);
  Phi Features(const Tensor& x, bool is_key);
  Phi Generalized(const Tensor& x);
  Tensor Shift(const Phi& q, const Phi& k);
  Tensor Unstabilised(const Tensor& out, const Tensor& shift, const Tensor& lse);
  Tensor LseOf(const Tensor& lse, const Tensor& shift);
  std::map<std::string, Tensor> States(const ScanOut& scanned, const Phi& k,
                                       const KeyTotals& before);

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

// lse of sums relative to `shift`; -inf where that is: a state without keys has no logarithm.
Tensor Estimate::LseOf(const Tensor& lse, const Tensor& shift) {
  const Tensor of_rows = ops_.Reshape(shift, ShapesOf(lse));
  const Tensor sum = Add(lse, of_rows);
  if (!HasState() || !o_.IsRunning() || !ops_.status().ok()) return sum;
  const Tensor least = Number(-kInf, of_rows);
  return ops_.Select(ops_.Apply(ElementOp::kEqual, of_rows, least), least, sum);
}

void Estimate::ReadInputs() {
  q_ = split_.Queries(in_.q);
  k_ = split_.Keys(in_.k);
  v_ = split_.Keys(in_.v);
  // Two scans read v, or a scan and its sum: their gradients are added before they are rounded.
  const bool is_read_twice = AddsEps() || (o_.return_state && o_.KeepsTotals());
  if (is_read_twice && in_.v[0].dtype != DType::kF32) v_ = ops_.Copy(v_);
  features_ = o_.States(in_.problems[0]).features;
  if (!o_.IsProjected()) return;
  omega_ = split_.Shared(Omega(ops_, in_, o_.Omega()));
}

// A tensor [B] or [B,Hkv] with as many dimensions of 1 behind as make four.
Tensor Estimate::SentState(const std::string& name) const {
  const Tensor sent = Sent(in_, name);
  if (sent.empty()) return sent;
  std::vector<Shape> shapes;
  for (const Shape& s : ShapesOf(sent)) shapes.push_back({s[0], s.rank > 1 ? s[1] : 1, 1, 1});
  return split_.Whole(ops_.Reshape(sent, shapes));
}

// Keys whose stabiliser is the largest of the rows so far, that of a state among them.
Estimate::Phi Estimate::Running(const RandomFeaturesOut& of_rows) {
  const Tensor& rows = of_rows.shift;
  if (!ops_.status().ok()) return {};
  Tensor all, shift, before;
  if (HasState()) {
    Tensor first = SentState("state_shift");
    if (first.empty()) {
      std::vector<Shape> shapes;
      for (const Shape& s : ShapesOf(rows)) shapes.push_back({s[0], s[1], 1, 1});
      first = ops_.Constant(-kInf, shapes);
    }
    all = ops_.Cumulative(CumulativeOp::kMax, ops_.Concat({first, rows}, kKeys), kKeys);
    std::vector<int64_t> begin, keys, end;
    for (const Shape& s : ShapesOf(rows)) {
      begin.push_back(0);
      keys.push_back(s[2]);
      end.push_back(s[2] + 1);
    }
    before = ops_.Slice(all, kKeys, begin, keys);
    shift = ops_.Slice(all, kKeys, {1}, end);
  } else {
    all = shift = ops_.Cumulative(CumulativeOp::kMax, rows, kKeys);
    before = ops_.Cumulative(CumulativeOp::kMax, rows, kKeys, /*exclusive=*/true);
  }
  if (!ops_.status().ok()) return {};
  std::vector<Shape> flat;
  for (const Shape& s : ShapesOf(rows)) flat.push_back({s[0], s[1], s[2]});
  const Tensor is_first = ops_.Apply(ElementOp::kEqual, before, Number(-kInf, before));
  return {.phi = of_rows.phi,
          .shift = all,
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
  const ElementOp fn = KernelFnOf(o_);
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
  const Tensor of_keys =
      o_.IsRunning() ? LastSeen(ops_, k.shift, HasState(), ShapesOf(q_), split_) : k.shift;
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

// The outputs that a later call starts from.
std::map<std::string, Tensor> Estimate::States(const ScanOut& scanned, const Phi& k,
                                               const KeyTotals& before) {
  if (!o_.return_state || !ops_.status().ok()) return {};
  std::vector<Shape> of_heads, of_batch;
  for (const ProblemShape& p : in_.problems) {
    of_heads.push_back({p.B, p.Hkv});
    of_batch.push_back({p.B});
  }
  Tensor s = scanned.s_out, z = scanned.z_out;
  std::map<std::string, Tensor> states;
  if (o_.KeepsTotals()) {
    const KeyTotals totals = TotalsAfter(ops_, before, v_);
    if (AddsEps()) AddConstant(ops_, Eps(), totals, &s, &z);
    states["state_v"] = split_.JoinState(totals.values);
    states["state_n"] = ops_.Reshape(split_.JoinState(totals.count), of_batch);
  }
  states["state_s"] = split_.JoinState(s);
  states["state_z"] = split_.JoinState(z);
  if (!o_.IsStabilised() || !ops_.status().ok()) return states;
  std::vector<int64_t> begin, end;
  for (const Shape& x : ShapesOf(k.shift)) {
    begin.push_back(x[2] - 1);
    end.push_back(x[2]);
  }
  const Tensor last = ops_.Copy(ops_.Slice(k.shift, kKeys, begin, end));
  states["state_shift"] = ops_.Reshape(split_.JoinState(last), of_heads);
  return states;
}

Outputs Estimate::Run() {
  ReadInputs();
  const Phi q = Features(q_, false), k = Features(k_, true);
  const ScanParams params = {.map = FeatureMap::kIdentity,
                             .offset = AddsEps() ? 0 : Eps(),
                             .causal = o_.causal,
                             .den = AddsEps() || !o_.renormalize ? ScanDen::kOne : ScanDen::kJax,
                             .eps = o_.DenEps()};
  const KeyTotals before = {split_.Whole(Sent(in_, "state_v")), SentState("state_n")};
  ScanTensors tensors = StatesOf(in_, o_.return_state, split_);
  if (!before.values.empty()) AddConstant(ops_, -Eps(), before, &tensors.s0, &tensors.z0);
  tensors.log_decay = k.log_decay;
  tensors.beta = k.weight;
  tensors.is_returned = !AddsEps() && o_.renormalize;
  ScanOut scanned = ops_.Scan(q.phi, k.phi, v_, params, split_.seqs(), tensors);
  if (AddsEps()) {
    const ConstantFeature constant = {
        .eps = Eps(), .den_eps = o_.DenEps(), .is_normalised = o_.renormalize};
    AddToKeys(ops_, constant, q.phi, v_, before, split_, &scanned);
  }
  const Tensor shift = Shift(q, k);
  if (!ops_.status().ok()) return {};
  if (!shift.empty()) {
    if (!o_.renormalize) scanned.out = Unstabilised(scanned.out, shift, scanned.lse);
    scanned.lse = LseOf(scanned.lse, shift);
  }
  return {.out = split_.JoinOut(scanned.out, in_.v[0].shape[3]),
          .lse = split_.JoinLse(scanned.lse),
          .extra = States(scanned, k, before)};
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
            PerformerLines()) {}

 protected:
  void CheckProblem(const ProblemShape& p, const PerformerOptions& o,
                    Reasons* reasons) const override {
    CheckPerformer(p, o, reasons);
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
