// Token mixing of MLP-Mixer (Tolstikhin et al. 2021, eq. 1): a two-layer perceptron over positions,
// the same for every channel,
//   A[t,c] = act(sum_{n < n_b} w1[n,t] Xn[n,c] + b1[t]),
//   Y[n,c] = sum_t A[t,c] w2[t,n] + b2[n] (+ X[n,c] with residual)
// with X the heads of v side by side and Xn = LN(X) over channels with pre_norm, else X.
#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

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

enum class Act : uint8_t { kGeluTanh, kGeluErf, kRelu, kIdentity };
constexpr int64_t kTokensDim = 256;

struct MixerOptions {
  std::optional<int64_t> tokens_dim;  // unset: that of w1, w2 or b1, else kTokensDim
  Act act = Act::kGeluTanh;
  bool pre_norm = true;
  double norm_eps = 1e-6;
  bool residual = false;
  uint64_t seed = 0;
};

std::vector<OptionSpec<MixerOptions>> Lines() {
  using O = MixerOptions;
  return {
      IntOption("tokens_dim", &O::tokens_dim, {.min = 1, .max = 65536}, kTokensDim,
                "T, the width over positions; that of w1, w2 or b1 where one is sent"),
      EnumOption("act", &O::act, {"gelu_tanh", "gelu_erf", "relu", "identity"},
                 "activation between the layers"),
      BoolOption("pre_norm", &O::pre_norm, "normalise the channels of a row first"),
      ReadIf(
          "pre_norm is true", [](const O& o) { return o.pre_norm; },
          FloatOption("norm_eps", &O::norm_eps, {.min = 1e-30, .max = 1e30},
                      "added to the variance")),
      BoolOption("residual", &O::residual, "add v to the result"),
      SeedOption(&O::seed),
  };
}

constexpr char kW1[] = "[L,T]", kB1[] = "[T]", kW2[] = "[T,L]", kB2[] = "[L]", kNorm[] = "[C]";

std::vector<TensorInfo> MixerInputs() {
  std::vector<TensorInfo> inputs = ValueInputs();
  inputs.push_back(Differentiable("w1", kW1,
                                  "first layer, L >= Nk; drawn when absent, for the padded Nk. "
                                  "Rows beyond the lengths must be finite"));
  inputs.push_back(Differentiable("b1", kB1, "zeros when absent"));
  inputs.push_back(Differentiable("w2", kW2,
                                  "second layer, L >= Nk; drawn when absent, for the padded Nk. "
                                  "Columns beyond the lengths must be finite"));
  inputs.push_back(Differentiable("b2", kB2, "zeros when absent; L >= Nk"));
  inputs.push_back(Differentiable("norm_weight", kNorm, "C = Hkv Dv; ones when absent"));
  inputs.push_back(Differentiable("norm_bias", kNorm, "zeros when absent"));
  return inputs;
}

// T, and what gives it.
struct Width {
  int64_t T = kTokensDim;
  const char* name = "tokens_dim";
  bool is_sent = false;  // as the size of a tensor
};
Width WidthOf(const ProblemShape& p, const MixerOptions& o) {
  for (const auto& [name, rank, axis] :
       {std::tuple("w1", 2, 1), std::tuple("w2", 2, 0), std::tuple("b1", 1, 0)}) {
    const View* sent = p.Find(name);
    if (sent != nullptr && sent->shape.rank == rank) return {sent->shape[axis], name, true};
  }
  return {o.tokens_dim.value_or(kTokensDim)};
}

// LeCun's normal.
DrawParams Drawn(const char* name, int64_t fan_in, uint64_t seed) {
  return {.seed = seed,
          .name = name,
          .distribution = Distribution::kTruncatedNormal,
          .deviation = std::sqrt(1 / static_cast<double>(std::max<int64_t>(fan_in, 1)))};
}

class MlpMixer final : public MethodOf<MixerOptions> {
 public:
  MlpMixer()
      : MethodOf({.id = "mlp_mixer",
                  .summary = "Two-layer perceptron over positions, of every channel",
                  .reference = "Tolstikhin et al. 2021 (arXiv 2105.01601), eq. 1",
                  .cost = "4 n T C FLOPs with C = H Dv; memory O((n + T) C), tables 2 n T",
                  .inputs = MixerInputs(),
                  .outputs = {{"out", "[B,H,Nq,Dv]", "float", "mixed rows"}},
                  .support = {.lengths = true}},
                 Lines()) {}

 protected:
  void CheckProblem(const ProblemShape& p, const MixerOptions& o, Reasons* reasons) const override {
    CheckMixing(p, reasons);
    const Width width = WidthOf(p, o);
    if (width.is_sent && width.T < 1) {
      reasons->Invalid(width.name, " shape must have T >= 1, got T = ", width.T);
    } else if (width.is_sent) {
      CheckSameSize("tokens_dim", o.tokens_dim, width.name, width.T, reasons);
    }
    for (const auto& [name, shape] :
         {std::pair("w1", kW1), std::pair("w2", kW2), std::pair("b1", kB1)}) {
      CheckShape(p, name, shape, {{"T", width.T, absl::StrCat("that of ", width.name)}}, reasons);
    }
    for (const auto& [name, shape] :
         {std::pair("w1", kW1), std::pair("w2", kW2), std::pair("b2", kB2)}) {
      CheckRows(p, name, shape, reasons);
    }
    for (const char* name : {"norm_weight", "norm_bias"}) {
      if (!o.pre_norm) {
        CheckUnread(p, name, "pre_norm", "false", reasons);
      } else if (p.HasSizesOf("v")) {
        CheckShape(p, name, kNorm, {{"C", ChannelsOf(p), "Hkv Dv"}}, reasons);
      }
    }
    if (!p.HasSizesOf("v")) return;
    CheckDrawn(p, "w1", Drawn("w1", p.Nk, o.seed), {p.Nk, width.T}, reasons);
    CheckDrawn(p, "w2", Drawn("w2", width.T, o.seed), {width.T, p.Nk}, reasons);
  }

  Outputs Formula(Ops& ops, const Inputs& in, const MixerOptions& o) const override {
    const MixedRows rows(ops, in);
    const Tensor x = MergeHeads(ops, rows.Clean(in.v));  // [B,1,N,C]
    Tensor xn = x;
    if (o.pre_norm) {
      xn = ops.LayerNorm(x, o.norm_eps, WithRank(ops, Sent(in, "norm_weight"), 4),
                         WithRank(ops, Sent(in, "norm_bias"), 4));
      // A row of zeros is norm_bias once it is normalised.
      xn = rows.Clean(xn);
    }
    const Tensor w1 = Layer(ops, in, o, "w1"), w2 = Layer(ops, in, o, "w2");
    const Tensor b1 = Column(ops, Sent(in, "b1"));
    Tensor b2 = Sent(in, "b2");
    if (!b2.empty()) b2 = Column(ops, FirstRows(ops, in, b2, -1));
    const Tensor hidden =
        ops.MatMul(ops.Transpose(w1, -2, -1), xn, {.activation = Activation(o.act)}, b1);
    Tensor added = b2;
    if (o.residual) added = b2.empty() ? x : ops.Apply(ElementOp::kAdd, x, b2);
    const Tensor y = ops.MatMul(ops.Transpose(w2, -2, -1), hidden, {.is_returned = true},
                                added);  // [B,1,N,C]
    const Outputs outputs{.out = rows.Out(SplitHeads(ops, y, in.problems[0].Dv))};
    CountMixedPairs(ops, in, /*causal=*/false);
    return outputs;
  }

 private:
  static std::optional<ElementOp> Activation(Act act) {
    switch (act) {
      case Act::kGeluTanh:
        return ElementOp::kGeluTanh;
      case Act::kGeluErf:
        return ElementOp::kGelu;
      case Act::kRelu:
        return ElementOp::kRelu;
      case Act::kIdentity:
        break;
    }
    return std::nullopt;
  }

  // w1 [1,1,N,T] or w2 [1,1,T,N].
  static Tensor Layer(Ops& ops, const Inputs& in, const MixerOptions& o, const char* name) {
    const bool is_first = name[1] == '1';
    std::vector<DrawParams> params;
    std::vector<Shape> shapes;
    for (const ProblemShape& p : in.problems) {
      const int64_t T = WidthOf(p, o).T;
      params.push_back(Drawn(name, is_first ? p.Nk : T, o.seed));
      shapes.push_back(is_first ? Shape{p.Nk, T} : Shape{T, p.Nk});
    }
    const Tensor table = SentOrDrawn(ops, in, name, params, shapes);
    return WithRank(ops, FirstRows(ops, in, table, is_first ? 0 : 1), 4);
  }

  // [n] -> [1,1,n,1].
  static Tensor Column(Ops& ops, const Tensor& x) {
    return x.empty() ? x : ops.Transpose(WithRank(ops, x, 4), -2, -1);
  }
};

}  // namespace

ATTND_METHOD(mlp_mixer, MlpMixer)

}  // namespace attnd
