// ReLU attention (Wortsman et al. 2023, section 3): a pointwise phi takes the place of the softmax,
//   out_i = L_i^-alpha sum_j phi(s_ij) v_j
// with the scores, shapes and visible keys of softmax. L_i: the valid keys of the row (nk), the
// keys that i sees (visible), (nk + 1) / 2 (avg), 1 (none), or length_value. No lse.
#include <cmath>

#include "kernels/methods/pattern/method.h"
#include "kernels/ops/composed.h"
#include "kernels/pattern/shapes/windows.h"

namespace attnd {
namespace {

enum class LengthNorm : uint8_t { kNk, kVisible, kAvg, kNone };
enum class Activation : uint8_t {
  kRelu,
  kReluSquared,
  kGelu,
  kSoftplus,
  kIdentity,
  kRelu6,
  kSigmoid
};

Weighting WeightingOf(Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return Weighting::kRelu;
    case Activation::kReluSquared:
      return Weighting::kReluSquared;
    case Activation::kGelu:
      return Weighting::kGelu;
    case Activation::kSoftplus:
      return Weighting::kSoftplus;
    case Activation::kIdentity:
      return Weighting::kIdentity;
    case Activation::kRelu6:
      return Weighting::kRelu6;
    case Activation::kSigmoid:
      return Weighting::kSigmoid;
  }
  return Weighting::kRelu;
}

struct Options : PatternOptions {
  Activation activation = Activation::kRelu;
  double alpha = 1;
  LengthNorm length_norm = LengthNorm::kNk;
  std::optional<double> length_value;
};

class ReluAttention : public PatternMethod<Options> {
 public:
  ReluAttention()
      : PatternMethod(
            {.id = "relu_attention",
             .summary = "ReLU, or another pointwise function, in place of the softmax",
             .reference = "Wortsman et al. 2023 (arXiv 2309.08586), section 3",
             .cost = "2 (D + Dv) FLOPs per visible pair, n^2 pairs; memory O(n)",
             .unsupported = {.sinks = true, .lse = true},
             .options = {
                 EnumOption(
                     "activation", &Options::activation,
                     {"relu", "relu_squared", "gelu", "softplus", "identity", "relu6", "sigmoid"},
                     "phi"),
                 ReadIf(
                     "a length divides",
                     [](const Options& o) {
                       return o.length_value.has_value() || o.length_norm != LengthNorm::kNone;
                     },
                     FloatOption("alpha", &Options::alpha, {.min = 0, .max = 2},
                                 "power of the length that divides")),
                 ReadIf(
                     "length_value is absent",
                     [](const Options& o) { return !o.length_value.has_value(); },
                     EnumOption("length_norm", &Options::length_norm,
                                {"nk", "visible", "avg", "none"},
                                "the length: valid keys, seen keys, (nk + 1) / 2, or 1")),
                 FloatOption("length_value", &Options::length_value, {.min = 1e-15, .max = 1e15},
                             "none", "a length that takes the place of length_norm's")}}) {}

 protected:
  HeadParts Sees(const SeenSeq& seq, const Options&, const Integers&) const override {
    return AllHeads(AllKeys(seq));
  }

  PatternExtras Extras(Ops& ops, const Inputs& in, const Options& o) const override {
    return {.weighting = WeightingOf(o.activation), .row_weight = RowWeight(ops, in, o)};
  }

 private:
  // L_i^-alpha, [B,1,1], or of every row.
  static Tensor RowWeight(Ops& ops, const Inputs& in, const Options& o) {
    const bool is_counted = o.length_norm == LengthNorm::kVisible && !o.length_value.has_value();
    if (is_counted) return Power(ops, VisibleKeys(ops, in, o), -o.alpha);
    std::vector<Shape> shapes, rows;
    std::vector<std::vector<float>> weights;
    for (const ProblemShape& p : in.problems) {
      shapes.push_back({p.B, 1, 1});
      rows.push_back({p.B, 1, p.Nq});
      std::vector<float>& of_problem = weights.emplace_back();
      for (int64_t b = 0; b < p.B && !ops.stream().is_dry(); ++b)
        of_problem.push_back(Weight(p, b, o));
    }
    return ops.Expand(ops.FromHost(shapes, weights), rows);
  }

  static float Weight(const ProblemShape& p, int64_t b, const Options& o) {
    const auto nk = static_cast<double>(p.Int("kv_lengths", b, p.Nk));
    double length = 1;
    if (o.length_norm == LengthNorm::kNk) length = nk;
    if (o.length_norm == LengthNorm::kAvg) length = (nk + 1) / 2;
    length = o.length_value.value_or(length);
    return length == 0 ? 0.0f : static_cast<float>(std::pow(length, -o.alpha));
  }

  // [B,H,Nq]: attention with weights and values of 1; a bias only hides.
  static Tensor VisibleKeys(Ops& ops, const Inputs& in, const Options& o) {
    // The visible pairs and FLOPs of a request are those of its attention.
    const Uncounted counting(ops);
    std::vector<Shape> q, k, counts;
    for (const ProblemShape& p : in.problems) {
      q.push_back({p.B, p.H, p.Nq, 1});
      k.push_back({p.B, 1, p.Nk, 1});
      counts.push_back({p.B, p.H, p.Nq});
    }
    Inputs ones = in;
    ones.q = ops.Copy(ops.Constant(1, q));
    ones.k = ones.v = ops.Copy(ops.Constant(1, k));
    ones.tensors.erase("alibi_slopes");
    if (const Tensor bias = Sent(in, "bias"); !bias.empty()) {
      const Tensor hidden = NumberLike(ops, -HUGE_VALF, bias);
      const Tensor hides = ops.Apply(ElementOp::kEqual, bias, hidden);
      ones.tensors["bias"] = ops.Select(hides, hidden, NumberLike(ops, 0, bias));
    }
    const PatternOptions plain{.scale = 1, .causal = o.causal};
    const auto all = [](const SeenSeq& seq) { return AllHeads(AllKeys(seq)); };
    const Outputs seen = PatternAttend(ops, ones, plain, all, {.weighting = Weighting::kIdentity});
    return ops.Reshape(seen.out, counts);
  }

  // x^power of counts; 0 of 0.
  static Tensor Power(Ops& ops, const Tensor& x, double power) {
    const Tensor zero = NumberLike(ops, 0, x);
    const Tensor logs = ops.Affine(ops.Apply(ElementOp::kLog, x), power);
    return ops.Select(ops.Apply(ElementOp::kGreater, x, zero), ops.Apply(ElementOp::kExp, logs),
                      zero);
  }
};

}  // namespace

ATTND_METHOD(relu_attention, ReluAttention)

}  // namespace attnd
