// Set Transformer (Lee et al. 2019, eq. 9-11): learned rows attend to the keys and, in mode isab,
// the queries attend to what these rows have gathered.
//   isab: C = softmax(scale I k^T + bias) v,  out = softmax(scale q (C w_k2)^T) (C w_v2)
//   pma:  out = softmax(scale S k^T + bias) v; q is not read
// with lse of the last softmax. residual adds to each attention its queries: C + I, out + q; S.
// Only keys j < n = kv_lengths[b] are seen; n = 0: no attention, out = 0 (residual: q or S), lse =
// -inf. Without q_lengths the rows of isab are valid below kv_lengths where Nq = Nk.
// q [B,H,Nq,D], k [B,Hkv,Nk,D], v [B,Hkv,Nk,Dv]; query head h reads kv head h / (H/Hkv).
#include <algorithm>
#include <cmath>
#include <optional>

#include "kernels/method/common_inputs.h"
#include "kernels/method/drawn.h"
#include "kernels/method/inner_problems.h"
#include "kernels/method/method.h"
#include "kernels/method/seq_groups.h"
#include "kernels/method/shape_rules.h"
#include "kernels/method/tensors.h"
#include "kernels/methods/mixing/rows.h"
#include "kernels/methods/pattern/seqs.h"
#include "kernels/ops/ops.h"
#include "kernels/pattern/shapes/windows.h"

namespace attnd {
namespace {

enum class Mode : uint8_t { kIsab, kPma };

struct SetOptions {
  Mode mode = Mode::kIsab;
  std::optional<int64_t> num_inducing, num_seeds;  // unset: those of the tensor, else the usual
  bool residual = false;
  std::optional<double> scale;  // unset: 1/sqrt(D)
  uint64_t seed = 0;

  bool IsPma() const { return mode == Mode::kPma; }
};
constexpr int64_t kInducing = 32, kSeeds = 1, kMostRows = int64_t{1} << 30;

std::vector<OptionSpec<SetOptions>> Lines() {
  using O = SetOptions;
  return {
      EnumOption("mode", &O::mode, {"isab", "pma"},
                 "q attends to what inducing rows gather, or seeds pool the keys"),
      ReadIf(
          "mode is isab", [](const O& o) { return !o.IsPma(); },
          IntOption("num_inducing", &O::num_inducing, {.min = 1, .max = kMostRows}, kInducing,
                    "rows of I; where inducing is sent, its own")),
      ReadIf(
          "mode is pma", [](const O& o) { return o.IsPma(); },
          IntOption("num_seeds", &O::num_seeds, {.min = 1, .max = kMostRows}, kSeeds,
                    "rows of S, and of out; where seeds is sent, its own")),
      BoolOption("residual", &O::residual, "adds to each attention its queries; needs Dv = D"),
      ScaleOption(&O::scale, "multiplies the products of queries and keys"),
      SeedOption(&O::seed),
  };
}

constexpr char kInducingShape[] = "[H,M,D] or [B,H,M,D]", kSeedsShape[] = "[H,S,D]";
constexpr char kWeightK[] = "[H,Dv,D] or [H*Dv,H*D]", kWeightV[] = "[H,Dv,Dv] or [H*Dv,H*Dv]";
constexpr const char* kOfIsab[] = {"inducing", "w_k2", "w_v2"};

std::vector<TensorInfo> SetInputs() {
  std::vector<TensorInfo> inputs = CommonInputs();
  inputs[0].required = false;
  inputs[0].help = "queries; pma does not read them";
  for (TensorInfo& input : inputs) {
    if (input.name != "q_lengths") continue;
    input.help += "; kv_lengths when absent and Nq = Nk; pma does not read them";
  }
  const auto add = [&](const char* name, const char* shape, const char* help) {
    inputs.push_back(Differentiable(name, shape, help));
  };
  add("inducing", kInducingShape, "I, of isab; drawn when absent");
  add("seeds", kSeedsShape, "S, of pma; drawn when absent");
  add("w_k2", kWeightK, "C becomes the keys of q, of each head or of all; absent: C, Dv = D");
  add("w_v2", kWeightV, "C becomes the values of q; absent: C");
  add("bias", "broadcastable to [B,1,1,Nk]", "added to the scores of keys");
  return inputs;
}

const char* RowsName(const SetOptions& o) { return o.IsPma() ? "seeds" : "inducing"; }
// The rows of the tensor that was sent: its last dimension but one.
std::optional<int64_t> SentRows(const ProblemShape& p, const SetOptions& o) {
  const View* view = p.Find(RowsName(o));
  if (view == nullptr || view->shape.rank < 2) return std::nullopt;
  return view->shape[view->shape.rank - 2];
}
int64_t RowsOf(const ProblemShape& p, const SetOptions& o) {
  if (const auto sent = SentRows(p, o)) return *sent;
  return o.IsPma() ? o.num_seeds.value_or(kSeeds) : o.num_inducing.value_or(kInducing);
}

// As Xavier's uniform initialisation of [1,M,H D].
DrawParams RowsDraw(const ProblemShape& p, const SetOptions& o) {
  const auto width = static_cast<double>(p.H * p.D);
  const auto rows = static_cast<double>(RowsOf(p, o));
  return UniformDraw(o.seed, RowsName(o), std::sqrt(6 / ((rows + 1) * width)));
}

class SetTransformer : public MethodOf<SetOptions> {
 public:
  SetTransformer()
      : MethodOf({.id = "set_transformer",
                  .summary = "Attention through inducing points, and pooling by learned seeds",
                  .reference = "Lee et al. 2019 (arXiv 1810.00825), eq. 9-11",
                  .cost = "2 (D + Dv) M FLOPs per query and per key of a head; memory O(n + M)",
                  .inputs = SetInputs(),
                  .outputs = {{"out", "[B,H,Nq,Dv] or [B,H,S,Dv]", "float",
                               "of each query, or of each seed"},
                              {"lse", "[B,H,Nq] or [B,H,S]", "float32",
                               "natural log, of the last softmax; -inf: no key"}},
                  .support = {.lengths = true, .cross = true, .gqa = true, .lse = true},
                  .tensors_with_heads = {"seeds"}},
                 Lines()) {}

 protected:
  void CheckProblem(const ProblemShape& p, const SetOptions& o, Reasons* reasons) const override {
    if (o.mode > Mode::kPma) return;  // refused
    CheckPresence(p, o, reasons);
    const int64_t rows = RowsOf(p, o);
    const bool is_sent = SentRows(p, o).has_value();
    const View* sent = p.Find(RowsName(o));
    if (is_sent && (rows < 1 || rows > kMostRows)) {
      reasons->Invalid(RowsName(o), " shape must have ", o.IsPma() ? "S" : "M", " in 1..",
                       kMostRows, ", got ", ToString(sent->shape));
    } else if (is_sent) {
      CheckSameSize(o.IsPma() ? "num_seeds" : "num_inducing",
                    o.IsPma() ? o.num_seeds : o.num_inducing, RowsName(o), rows, reasons);
    }
    if (rows >= 1) CheckDrawn(p, RowsName(o), RowsDraw(p, o), {p.H, rows, p.D}, reasons);
    const std::vector<Letter> widths = {{"H*Dv", p.H * p.Dv}, {"H*D", p.H * p.D}};
    for (const char* name : {"w_k2", "w_v2"}) {
      CheckShape(p, name, name[2] == 'k' ? kWeightK : kWeightV, widths, reasons);
    }
    const Letter of_out = o.IsPma() ? Letter{"S", rows} : Letter{"Nq", p.Nq};
    CheckShape(p, "grad_out", o.IsPma() ? "[B,H,S,Dv]" : "[B,H,Nq,Dv]", {of_out}, reasons);
    CheckShape(p, "grad_lse", o.IsPma() ? "[B,H,S]" : "[B,H,Nq]", {of_out}, reasons);
    if (!p.HasSizesOf("k") || !p.HasSizesOf("v") || p.D == p.Dv) return;
    if (o.residual) reasons->Invalid("Dv must be D = ", p.D, " with residual, got ", p.Dv);
    if (!o.IsPma() && p.Find("w_k2") == nullptr) {
      reasons->Invalid("Dv must be D = ", p.D, " without w_k2, got ", p.Dv);
    }
  }

  // Weights of all heads take other steps than those of each.
  std::string BranchOf(const ProblemShape& p, const SetOptions&) const override {
    const auto is_whole = [&](const char* name) {
      const View* view = p.Find(name);
      return view != nullptr && view->shape.rank == 2;
    };
    return absl::StrCat(is_whole("w_k2") ? "k" : "", is_whole("w_v2") ? "v" : "");
  }

  Outputs Formula(Ops& ops, const Inputs& in, const SetOptions& o) const override {
    const Tensor rows = Rows(ops, in, o);
    if (!ops.status().ok()) return {};
    return o.IsPma() ? Pooled(ops, in, o, rows) : Induced(ops, in, o, rows);
  }

 private:
  static void CheckPresence(const ProblemShape& p, const SetOptions& o, Reasons* reasons) {
    const auto unread = [&](const char* name, const char* needed, const char* got) {
      if (p.Find(name) != nullptr) reasons->Invalid(name, " needs mode ", needed, ", got ", got);
    };
    if (o.IsPma()) {
      for (const char* name : kOfIsab) unread(name, "isab", "pma");
    } else {
      unread("seeds", "pma", "isab");
    }
    if (p.Find("q") != nullptr) return;
    if (!o.IsPma()) reasons->Invalid("q is required with mode isab, got none");
    if (p.Hkv > 0 && p.H % p.Hkv != 0) {
      reasons->Invalid("H must be a multiple of Hkv, got H = ", p.H, " and Hkv = ", p.Hkv);
    }
  }

  // I or S, [B,H,M,D].
  static Tensor Rows(Ops& ops, const Inputs& in, const SetOptions& o) {
    std::vector<DrawParams> params;
    std::vector<Shape> drawn, whole;
    for (const ProblemShape& p : in.problems) {
      params.push_back(RowsDraw(p, o));
      drawn.push_back({p.H, RowsOf(p, o), p.D});
      whole.push_back({p.B, p.H, RowsOf(p, o), p.D});
    }
    const Tensor rows = SentOrDrawn(ops, in, RowsName(o), params, drawn);
    if (!ops.status().ok()) return {};
    return ops.Expand(WithRank(ops, rows, 4), whole);
  }

  static AttendSeqs AllOf(Ops& ops, const InnerProblems& problems) {
    ops.stream().work().host_bytes += problems.host_bytes();
    const PatternSeqs seqs = SeqsOf(ops, problems.inputs(), /*causal=*/false, {},
                                    [](const SeenSeq& seq) { return AllHeads(AllKeys(seq)); });
    return ops.status().ok() ? seqs.parts[0] : AttendSeqs();
  }

  // What the learned rows gather from the keys.
  static AttendOut Gathered(Ops& ops, const Inputs& in, const SetOptions& o, const Tensor& rows,
                            DType dtype) {
    InnerProblems problems(in);
    problems.DropLengths("q_lengths");
    for (size_t p = 0; p < in.problems.size(); ++p) problems[p].Nq = RowsOf(in.problems[p], o);
    AttendTensors terms;
    if (const Tensor bias = Sent(in, "bias"); !bias.empty()) terms.bias = WithRank(ops, bias, 4);
    const AttendSeqs seqs = AllOf(ops, problems);
    if (!ops.status().ok()) return {};
    return ops.Attend(rows, in.k, in.v, ParamsOf(in, o), {seqs}, terms, dtype);
  }

  static AttendParams ParamsOf(const Inputs& in, const SetOptions& o) {
    return {.scale = o.scale.value_or(1 / std::sqrt(static_cast<double>(in.problems[0].D)))};
  }

  static Outputs Pooled(Ops& ops, const Inputs& in, const SetOptions& o, const Tensor& rows) {
    const DType dtype = in.v[0].dtype;
    AttendOut made = Gathered(ops, in, o, rows, o.residual ? DType::kF32 : dtype);
    if (o.residual) made.out = ops.Apply(ElementOp::kAdd, made.out, rows, dtype);
    if (!ops.status().ok()) return {};
    return {.out = AsOutput(ops, made.out, dtype, LayoutsOf(in.v)), .lse = made.lse};
  }

  static Outputs Induced(Ops& ops, const Inputs& in, const SetOptions& o, const Tensor& rows) {
    Tensor C = Gathered(ops, in, o, rows, DType::kF32).out;  // [B,H,M,Dv]
    if (o.residual) C = ops.Apply(ElementOp::kAdd, C, rows);
    const Tensor k = Mapped(ops, C, Sent(in, "w_k2"), in.problems[0].D);
    const Tensor v = Mapped(ops, C, Sent(in, "w_v2"), in.problems[0].Dv);

    InnerProblems problems(in);
    for (size_t p = 0; p < in.problems.size(); ++p) {
      const ProblemShape& of = in.problems[p];
      const bool has_own = of.Find("q_lengths") != nullptr;
      // Queries of a set that attends to itself are as many as its keys.
      if (!has_own && of.Find("kv_lengths") != nullptr && of.Nq == of.Nk) {
        problems.CopyLengths(p, "kv_lengths", "q_lengths");
      }
      // An empty set has gathered nothing.
      problems[p].Nk = of.Nk == 0 ? 0 : RowsOf(of, o);
    }
    problems.SetLengths("kv_lengths", [&](size_t p, int64_t b) {
      return in.problems[p].Int("kv_lengths", b, 1) > 0 ? problems[p].Nk : 0;
    });
    const AttendSeqs seqs = AllOf(ops, problems);
    if (!ops.status().ok()) return {};
    const DType dtype = in.q[0].dtype;
    const AttendOut made =
        ops.Attend(in.q, k, v, ParamsOf(in, o), {seqs}, {}, o.residual ? DType::kF32 : dtype);
    if (!o.residual) return {.out = made.out, .lse = made.lse};
    const Tensor sum = ops.Apply(ElementOp::kAdd, made.out,
                                 ZerosBeyond(ops, problems.inputs(), in.q, "q_lengths"), dtype);
    if (!ops.status().ok()) return {};
    return {.out = AsOutput(ops, sum, dtype, LayoutsOf(in.q)), .lse = made.lse};
  }

  // C w of each head or, [H*Dv,H*D], of all heads side by side.
  static Tensor Mapped(Ops& ops, const Tensor& C, const Tensor& w, int64_t width) {
    if (w.empty() || !ops.status().ok()) return C;
    if (w[0].shape.rank == 3) return ops.MatMul(C, WithRank(ops, w, 4));
    return SplitHeads(ops, ops.MatMul(MergeHeads(ops, C), WithRank(ops, w, 4)), width);
  }
};

}  // namespace

ATTND_METHOD(set_transformer, SetTransformer)

}  // namespace attnd
