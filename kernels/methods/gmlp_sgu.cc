// Spatial gating unit of gMLP (Liu et al. 2021, eq. 2-4): one half of the channels, normalised and
// mixed over positions, gates the other half,
//   zn = LN(z),  G[n,d] = sum_{m < n_b} weight[n,m] zn[m,d] + bias[n] + gate_residual[n,d],
//   out = u act(G);  causal: only m <= n.
// u and z are the halves of v; where q is sent, u = q and z = v.
#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "kernels/method/common_inputs.h"
#include "kernels/method/drawn.h"
#include "kernels/method/method.h"
#include "kernels/method/shape_rules.h"
#include "kernels/method/tensors.h"
#include "kernels/methods/mixing/rows.h"
#include "kernels/methods/mixing/rules.h"
#include "kernels/ops/ops.h"

namespace attnd {
namespace {

enum class NormScope : uint8_t { kModel, kHead, kNone };
enum class Act : uint8_t { kIdentity, kTanh, kSigmoid };

struct GmlpOptions {
  NormScope norm_scope = NormScope::kModel;
  double norm_eps = 1e-5;
  Act act = Act::kIdentity;
  bool causal = false;
  uint64_t seed = 0;
};

std::vector<OptionSpec<GmlpOptions>> Lines() {
  using O = GmlpOptions;
  return {
      EnumOption("norm_scope", &O::norm_scope, {"model", "head", "none"},
                 "the gate channels of a row are normalised over all heads, or each head's"),
      ReadIf(
          "norm_scope is not none", [](const O& o) { return o.norm_scope != NormScope::kNone; },
          FloatOption("norm_eps", &O::norm_eps, {.min = 1e-30, .max = 1e30},
                      "added to the variance")),
      EnumOption("act", &O::act, {"identity", "tanh", "sigmoid"}, "activation of the gate"),
      BoolOption("causal", &O::causal,
                 "row n sees rows m <= n: entries above the diagonal of weight are not used"),
      SeedOption(&O::seed),
  };
}

constexpr char kWeight[] = "weight", kBias[] = "bias";
constexpr char kWeightShape[] = "[L,L] or [Hkv,L,L]", kBiasShape[] = "[L] or [Hkv,L]";
constexpr char kNormShape[] = "[Hkv,Dg]", kResidualShape[] = "[B,Hkv,Nk,Dg]";

std::vector<TensorInfo> GmlpInputs() {
  std::vector<TensorInfo> inputs = ValueInputs();
  inputs[0] = Differentiable("q", "[B,H,Nq,D]", "u, with D = Dv; absent: the first half of v");
  inputs[2].help = "z; without q its last half, Dg = Dv/2, and u its first";
  inputs.push_back(Differentiable(kWeight, kWeightShape,
                                  "over positions, L >= Nk; drawn when absent, for the padded Nk"));
  inputs.push_back(Differentiable(kBias, kBiasShape, "of positions; ones when absent"));
  inputs.push_back(Differentiable("norm_weight", kNormShape, "ones when absent"));
  inputs.push_back(Differentiable("norm_bias", kNormShape, "zeros when absent"));
  inputs.push_back(Differentiable("gate_residual", kResidualShape, "added to the gate"));
  return inputs;
}

// Channels of the gate.
int64_t GateWidth(const ProblemShape& p) { return p.Find("q") == nullptr ? p.Dv / 2 : p.Dv; }

DrawParams WeightDraw(int64_t N, uint64_t seed) {
  const double most = 1e-3 / static_cast<double>(std::max<int64_t>(N, 1));
  return UniformDraw(seed, kWeight, most);
}

class GmlpSgu final : public MethodOf<GmlpOptions> {
 public:
  GmlpSgu()
      : MethodOf({.id = "gmlp_sgu",
                  .summary = "Spatial gating unit: mixed channels gate the others",
                  .reference = "Liu et al. 2021 (arXiv 2105.08050), eq. 2-4",
                  .cost = "2 n^2 Dg FLOPs a head; memory O(n Dg), weight n^2",
                  .inputs = GmlpInputs(),
                  .outputs = {{"out", "[B,H,Nq,Dg]", "float", "gated rows"}},
                  .support = {.causal = true, .lengths = true}},
                 Lines()) {}

 protected:
  void CheckProblem(const ProblemShape& p, const GmlpOptions& o, Reasons* reasons) const override {
    CheckMixing(p, reasons);
    CheckRows(p, kWeight, kWeightShape, reasons);
    CheckRows(p, kBias, kBiasShape, reasons);
    for (const char* name : {"norm_weight", "norm_bias"}) {
      if (o.norm_scope == NormScope::kNone) CheckUnread(p, name, "norm_scope", "none", reasons);
    }
    if (!p.HasSizesOf("v")) return;
    CheckDrawn(p, kWeight, WeightDraw(p.Nk, o.seed), {p.Nk, p.Nk}, reasons);
    if (p.Find("q") == nullptr) {
      if (p.Dv % 2 != 0) reasons->Invalid("Dv must be even without q, got ", p.Dv);
    } else if (p.HasSizesOf("q") && p.D != p.Dv) {
      return reasons->Invalid("D must be Dv = ", p.Dv, ", got ", p.D);
    }
    CheckWidths(p, reasons);
  }

  std::string BranchOf(const ProblemShape& p, const GmlpOptions& o) const override {
    // One matrix for all heads takes another path than one for each.
    const View* weight = p.Find(kWeight);
    const bool is_per_head = weight != nullptr && weight->shape.rank == 3;
    return absl::StrCat(MixBranch(p, o.causal), is_per_head ? "h" : "");
  }

  Outputs Formula(Ops& ops, const Inputs& in, const GmlpOptions& o) const override {
    const MixedRows rows(ops, in);
    const int64_t Dg = in.q.empty() ? in.problems[0].Dv / 2 : in.problems[0].Dv;
    const bool has_q = !in.q.empty();
    const Tensor u = rows.Clean(has_q ? in.q : ops.Slice(in.v, -1, {0}, {Dg}));
    const Tensor z = rows.Clean(has_q ? in.v : ops.Slice(in.v, -1, {Dg}, {2 * Dg}));
    const Tensor zn = Normed(ops, in, z, o);
    const Tensor weight = Weight(ops, in, o);
    if (!ops.status().ok()) return {};
    bool is_shared = true;
    for (size_t p = 0; p < weight.size(); ++p) is_shared = is_shared && weight[p].shape[1] == 1;
    // One matrix for all heads is one product over the channels of all of them.
    const bool mixes_heads = o.norm_scope == NormScope::kModel;
    const bool is_wide = is_shared && (mixes_heads || !rows.IsSparse(o.causal));
    Tensor G = rows.Mix(weight, is_wide ? MergeHeads(ops, zn) : zn, o.causal);
    if (is_wide) G = SplitHeads(ops, G, Dg);
    G = ops.Apply(ElementOp::kAdd, G, Bias(ops, in));
    if (const Tensor more = Sent(in, "gate_residual"); !more.empty()) {
      G = ops.Apply(ElementOp::kAdd, G, rows.Clean(more));
    }
    if (o.act == Act::kTanh) G = ops.Apply(ElementOp::kTanh, G);
    if (o.act == Act::kSigmoid) G = ops.Apply(ElementOp::kSigmoid, G);
    const Outputs outputs{.out = rows.Out(ops.Apply(ElementOp::kMultiply, u, G))};
    CountMixedPairs(ops, in, o.causal);
    return outputs;
  }

 private:
  static void CheckWidths(const ProblemShape& p, Reasons* reasons) {
    const Letter width{"Dg", GateWidth(p), p.Find("q") == nullptr ? "Dv/2" : "Dv"};
    for (const char* name : {"norm_weight", "norm_bias"}) {
      CheckShape(p, name, kNormShape, {width}, reasons);
    }
    CheckShape(p, "gate_residual", kResidualShape, {width}, reasons);
    CheckShape(p, "grad_out", "[B,H,Nq,Dg]", {width}, reasons);
  }

  // LN(z) [B,H,N,Dg] over the channels of a row, of all heads or of each.
  static Tensor Normed(Ops& ops, const Inputs& in, const Tensor& z, const GmlpOptions& o) {
    if (o.norm_scope == NormScope::kNone || !ops.status().ok()) return z;
    const bool is_model = o.norm_scope == NormScope::kModel;
    const int64_t Dg = z[0].shape[3];
    std::vector<Shape> shapes;
    for (const ProblemShape& p : in.problems) {
      shapes.push_back(is_model ? Shape{1, 1, 1, p.Hkv * Dg} : Shape{1, p.Hkv, 1, Dg});
    }
    const auto of_channels = [&](const std::string& name) {
      const Tensor sent = Sent(in, name);
      return sent.empty() ? sent : ops.Reshape(sent, shapes);
    };
    const Tensor x = is_model ? MergeHeads(ops, z) : z;
    const Tensor normed =
        ops.LayerNorm(x, o.norm_eps, of_channels("norm_weight"), of_channels("norm_bias"));
    return is_model ? SplitHeads(ops, normed, Dg) : normed;
  }

  // [1,1|H,N,N].
  static Tensor Weight(Ops& ops, const Inputs& in, const GmlpOptions& o) {
    std::vector<DrawParams> params;
    std::vector<Shape> shapes;
    for (const ProblemShape& p : in.problems) {
      params.push_back(WeightDraw(p.Nk, o.seed));
      shapes.push_back({p.Nk, p.Nk});
    }
    const Tensor table = SentOrDrawn(ops, in, kWeight, params, shapes);
    return WithRank(ops, FirstRows(ops, in, FirstRows(ops, in, table, -2), -1), 4);
  }

  // [1,1|H,N,1].
  static Tensor Bias(Ops& ops, const Inputs& in) {
    const Tensor sent = Sent(in, kBias);
    if (sent.empty() || !ops.status().ok()) {
      return ops.Constant(1, std::vector<Shape>(in.problems.size(), Shape{1, 1, 1, 1}));
    }
    const Tensor bias = FirstRows(ops, in, sent, -1);
    std::vector<Shape> shapes;
    for (size_t p = 0; p < bias.size(); ++p) {
      const Shape& s = bias[p].shape;
      shapes.push_back({1, s.rank == 2 ? s[0] : 1, s[s.rank - 1], 1});
    }
    return ops.Reshape(bias, shapes);
  }
};

}  // namespace

ATTND_METHOD(gmlp_sgu, GmlpSgu)

}  // namespace attnd
