// Long-Short Transformer (Zhu et al. 2021, sections 3.1-3.3, eq. 3-6): one softmax over a window of
// near keys and over r vectors, or r vectors of every segment, that stand for all keys.
//   L_jc = k_j . dyn_weight_c + dyn_bias_c, P = softmax of L over the positions of a segment
//   Kl = LN(K), Vl = LN(V); Kg_c = LN(sum_j P_jc k_j), Vg_c likewise   (ln_order nested: of Kl, Vl)
//   out_i = softmax(scale q_i [Kg, Kl] + bias) [Vg, Vl] over what p = i + Nk - Nq sees
// Not causal, all keys are one segment that every query sees. Causal, segment t holds the positions
// from t l on, and is seen where t < floor(p / l) or, completed, where it ends at or before p.
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/method/common_inputs.h"
#include "kernels/method/tensors.h"
#include "kernels/methods/long_short/keys.h"
#include "kernels/methods/long_short/options.h"
#include "kernels/methods/pattern/seqs.h"
#include "kernels/pattern/shapes/windows.h"

namespace attnd {
namespace {

using O = LongShortOptions;

bool CompressesSegments(const O& o, const ProblemShape& problem) {
  return o.causal && RankOf(problem, o) != 0;
}

// A refused value leaves the default, so that later rules skip it.
OptionSpec<O> UnlessRefused(OptionSpec<O> line, std::optional<int64_t> O::*member) {
  line.set = [set = line.set, member](const OptionValue& v, O* o, Reasons* r) {
    set(v, o, r);
    if (o->*member == 0 && v != OptionValue(int64_t{0})) (o->*member).reset();
  };
  return line;
}

OptionSpec<O> ModeOption() {
  const std::vector<std::string> names = {"segment", "sliding", "blocks"};
  const auto name_of = [names](WindowMode mode) { return names.at(static_cast<size_t>(mode)); };
  return {{.name = "window_mode",
           .type = OptionType::kEnum,
           .default_text = "segment; causal sliding",
           .enum_values = names,
           .help = "how the window of w keys lies around p"},
          [names](const OptionValue& v, O* o, Reasons* r) {
            int value = 0;
            options_internal::ReadEnum("window_mode", names, v, &value, r);
            o->window_mode = static_cast<WindowMode>(value);
          },
          [name_of](const O& o) -> std::optional<OptionValue> {
            if (!o.window_mode.has_value()) return std::nullopt;
            return name_of(*o.window_mode);
          },
          [name_of](const O& o, int64_t) { return name_of(o.Mode()); }};
}

std::vector<OptionSpec<O>> Lines() {
  return {
      UnlessRefused(
          IntOption("rank", &O::rank, {.min = 0, .max = 1024}, "32; causal 1",
                    "r, vectors that stand for all keys or for a segment; 0: none; sent tensors "
                    "that have r decide it"),
          &O::rank),
      UnlessRefused(
          IntOption("window", &O::window, {.min = -1, .max = 65536}, "8; causal 512",
                    "w, keys around p; -1: none", [](const O& o, int64_t) { return o.Width(); }),
          &O::window),
      ReadIf(
          "window is not -1", [](const O& o) { return o.Width() != -1; }, ModeOption()),
      ReadIf("causal is true and rank is not 0", CompressesSegments,
             IntOption("segment_len", &O::segment_len, {.min = 1, .max = 65536},
                       "l, positions of a segment")),
      ReadIf("causal is true and rank is not 0", CompressesSegments,
             EnumOption("segment_visibility", &O::segment_visibility, {"strict", "completed"},
                        "segments before that of p, or all that end at or before p")),
      BoolOption("dual_ln", &O::dual_ln, "layer norms of near and of compressed keys and values"),
      ReadIf(
          "dual_ln is true", [](const O& o) { return o.dual_ln; },
          EnumOption("ln_scope", &O::ln_scope, {"model", "head"},
                     "norms over all features of a position, or over those of a head")),
      ReadIf(
          "dual_ln is true", [](const O& o) { return o.dual_ln; },
          EnumOption("ln_order", &O::ln_order, {"paper", "nested"},
                     "what is compressed: raw keys and values, or normed ones")),
      ReadIf(
          "dual_ln is true", [](const O& o) { return o.dual_ln; },
          FloatOption("ln_eps", &O::ln_eps, {.min = 1e-30, .max = 1e30}, "added to the variance")),
      ScaleOption(&O::scale, "multiplies q k^T"),
      CausalOption(&O::causal),
      SeedOption(&O::seed),
  };
}

std::vector<TensorInfo> LongShortInputs() {
  std::vector<TensorInfo> inputs = CommonInputs();
  inputs.push_back(Differentiable("dyn_weight", "[Hkv,D,r] or [D,r]",
                                  "of the projection; drawn, U(-1/sqrt(D), 1/sqrt(D))"));
  inputs.push_back(Differentiable("dyn_bias", "[Hkv,r]", "of the projection; zeros when absent"));
  inputs.push_back(
      Differentiable("dyn_logits", "[B,Hkv,Nk,r]", "L, in place of dyn_weight and dyn_bias"));
  for (const char* place : {"local", "global"}) {
    for (const char* of : {"k", "v"}) {
      const std::string name = absl::StrCat("ln_", place, "_", of);
      const char* shape = of[0] == 'k' ? "[Hkv,D]" : "[Hkv,Dv]";
      inputs.push_back(
          Differentiable(name + "_weight", shape, "of a layer norm; ones when absent"));
      inputs.push_back(Differentiable(name + "_bias", shape, "of a layer norm; zeros when absent"));
    }
  }
  inputs.push_back(Differentiable("bias_local", "broadcastable to [B,H,Nq,Nk]",
                                  "added to the scores of near keys"));
  inputs.push_back(Differentiable("bias_global", "broadcastable to [B,H,Nq,R]",
                                  "added to the scores of compressed keys, column t r + c; R = r, "
                                  "causal ceil(Nk / segment_len) r"));
  return inputs;
}

// Which keys one call of attend sees.
enum class Seen : uint8_t { kWindow, kCompressed, kBoth };

class LongShort : public MethodOf<O> {
 public:
  LongShort()
      : MethodOf(
            {.id = "long_short",
             .summary = "A window of keys, and vectors that stand for all or for segments",
             .reference = "Zhu et al. 2021 (arXiv 2107.02192), sections 3.1-3.3",
             .cost = "2 (D + Dv) FLOPs per visible pair, n (r + 2 w), causal n (n r / l + w) "
                     "pairs; memory O(n r)",
             .inputs = LongShortInputs(),
             .outputs = {{"out", "[B,H,Nq,Dv]", "float", "weighted sums of values"},
                         {"lse", "[B,H,Nq]", "float32",
                          "natural log of the sum of weights; -inf: nothing is seen"}},
             .support = {.causal = true, .lengths = true, .cross = true, .gqa = true, .lse = true}},
            Lines()) {}

 protected:
  void CheckProblem(const ProblemShape& p, const O& o, Reasons* reasons) const override {
    CheckLongShort(p, o, info().inputs, reasons);
  }

  Outputs Formula(Ops& ops, const Inputs& in, const O& o) const override {
    const LongShortKeys keys = KeysOf(ops, in, o);
    if (!ops.status().ok()) return {};
    const auto attend = [&](Seen seen, const AttendTensors& terms, DType dtype) {
      const bool is_long = seen == Seen::kCompressed;
      return Attend(
          ops, in, o,
          {seen, is_long ? keys.long_k : keys.k, is_long ? keys.long_v : keys.v, terms, dtype});
    };
    const AttendTensors near{.bias = Bias(ops, in, "bias_local")};
    const AttendTensors far{.bias = Bias(ops, in, "bias_global")};
    const DType dtype = in.q[0].dtype;
    if (RankOf(in.problems[0], o) == 0) return OutputsOf(attend(Seen::kWindow, near, dtype));
    if (o.Width() == -1) return OutputsOf(attend(Seen::kCompressed, far, dtype));
    // One call reads a bias of its first source of keys only.
    if (!far.bias.empty()) {
      const AttendOut parts[] = {attend(Seen::kWindow, near, DType::kF32),
                                 attend(Seen::kCompressed, far, DType::kF32)};
      if (!ops.status().ok()) return {};
      return OutputsOf(ops.Merge({parts[0], parts[1]}, dtype));
    }
    return OutputsOf(
        attend(Seen::kBoth, {.k2 = keys.long_k, .v2 = keys.long_v, .bias = near.bias}, dtype));
  }

 private:
  struct Call {
    Seen seen;
    Tensor k, v;
    AttendTensors terms;
    DType dtype;  // of out
  };

  static Outputs OutputsOf(const AttendOut& attended) {
    return {.out = attended.out, .lse = attended.lse};
  }

  static Tensor Bias(Ops& ops, const Inputs& in, const char* name) {
    const Tensor sent = Sent(in, name);
    return sent.empty() ? sent : WithRank(ops, sent, 4);
  }

  static PatternSource SourceOf(const SeenSeq& seq, const O& o, Seen seen) {
    const int64_t rank = RankOf(seq.problem, o);
    switch (seen) {
      case Seen::kWindow:
        return WindowSource(seq.Nq, seq.Nk, WindowOf(o, seq.offset), seq.lengths);
      case Seen::kCompressed:
        return CompressedSource(seq, SegmentsOf(o, seq.Nk, rank));
      case Seen::kBoth:
        break;
    }
    return WindowAndCompressed(seq, WindowOf(o, seq.offset), SegmentsOf(o, seq.Nk, rank));
  }

  static AttendOut Attend(Ops& ops, const Inputs& in, const O& o, Call call) {
    PatternSeqs seqs = SeqsOf(ops, in, o.causal, {}, [&](const SeenSeq& seq) {
      return AllHeads(SourceOf(seq, o, call.seen));
    });
    if (!ops.status().ok()) return {};
    // The keys of this call are the compressed ones.
    for (size_t p = 0; p < in.problems.size() && call.seen == Seen::kCompressed; ++p) {
      const CompressedSegments segments =
          SegmentsOf(o, in.problems[p].Nk, RankOf(in.problems[p], o));
      for (AttendSeq& seq : seqs.parts[0][p]) seq.nk = segments.Keys(seq.nk);
    }
    // Both sources of keys are of one dtype.
    if (call.seen == Seen::kBoth && call.k[0].dtype != DType::kF32) {
      call.k = ops.Copy(call.k);
      call.v = ops.Copy(call.v);
    }
    const double D = static_cast<double>(in.problems[0].D);
    const AttendParams params{.scale = o.scale.value_or(1 / std::sqrt(D))};
    return ops.Attend(in.q, call.k, call.v, params, seqs.parts, call.terms, call.dtype);
  }
};

}  // namespace

ATTND_METHOD(long_short, LongShort)

}  // namespace attnd
