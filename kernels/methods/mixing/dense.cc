#include "kernels/methods/mixing/dense.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/method/common_inputs.h"
#include "kernels/method/drawn.h"
#include "kernels/method/shape_rules.h"
#include "kernels/method/tensors.h"
#include "kernels/methods/mixing/rows.h"
#include "kernels/methods/mixing/rules.h"
#include "kernels/ops/ops.h"

namespace attnd {
namespace {

constexpr char kSeq[] = "seq_kernel", kHidden[] = "hidden_kernel";
constexpr char kSeqShape[] = "[L,L] or [Hkv,L,L]", kHiddenShape[] = "[C,C] or [Hkv,Dv,Dv]";

std::vector<OptionSpec<DenseOptions>> Lines() {
  using O = DenseOptions;
  return {
      BoolOption("mix_hidden", &O::mix_hidden, "false: positions alone, without hidden_kernel"),
      ReadIf(
          "mix_hidden is true", [](const O& o) { return o.mix_hidden; },
          EnumOption("hidden_scope", &O::hidden_scope, {"merged", "per_head"},
                     "channels of all heads together, or of each head alone")),
      BoolOption("causal", &O::causal,
                 "row n sees rows m <= n: entries above the diagonal of "
                 "seq_kernel are not used"),
      SeedOption(&O::seed),
  };
}

MethodInfo WithTensors(MethodInfo info, bool learned) {
  info.cost = "2 n^2 C + 2 n C^2 FLOPs with C = H Dv; memory O(n C), tables n^2 + C^2";
  info.inputs = ValueInputs();
  info.inputs.push_back(Differentiable(kSeq, kSeqShape,
                                       "over positions, from the left, L >= Nk; [Hkv,L,L] with "
                                       "per_head only; drawn when absent, for the padded Nk"));
  info.inputs.push_back(Differentiable(
      kHidden, kHiddenShape,
      "over channels, from the right: [C,C], C = Hkv Dv, or with per_head [Hkv,Dv,Dv]; drawn "
      "when absent"));
  for (TensorInfo& input : info.inputs) {
    if (input.name == kSeq || input.name == kHidden) input.differentiable = learned;
  }
  info.outputs = {{"out", "[B,H,Nq,Dv]", "float", "mixed rows"}};
  info.support = {.causal = true, .lengths = true};
  return info;
}

// A table of heads, or one for all of them.
bool IsPerHead(const DenseOptions& o) { return o.hidden_scope == HiddenScope::kPerHead; }

void CheckHidden(const ProblemShape& p, const DenseOptions& o, Reasons* reasons) {
  const View* hidden = p.Find(kHidden);
  if (hidden == nullptr) return;
  if (!o.mix_hidden) return CheckUnread(p, kHidden, "mix_hidden", "false", reasons);
  const int rank = hidden->shape.rank;
  if (rank != 2 && rank != 3) return;
  if ((rank == 3) != IsPerHead(o)) {
    reasons->Invalid(kHidden, " must be ", IsPerHead(o) ? "[Hkv,Dv,Dv]" : "[C,C]",
                     " with hidden_scope ", IsPerHead(o) ? "per_head" : "merged", ", got ",
                     ToString(hidden->shape));
  } else if (rank == 2 && p.HasSizesOf("v")) {
    CheckShape(p, kHidden, "[C,C]", {{"C", ChannelsOf(p), "Hkv Dv"}}, reasons);
  }
}

}  // namespace

DenseMixing::DenseMixing(MethodInfo info, bool learned)
    : MethodOf(WithTensors(std::move(info), learned), Lines()) {}

DrawParams DenseMixing::Named(std::string name, int64_t fan_in, uint64_t seed) const {
  DrawParams params = Drawn(static_cast<double>(std::max<int64_t>(fan_in, 1)));
  params.name = std::move(name);
  params.seed = seed;
  return params;
}

void DenseMixing::CheckProblem(const ProblemShape& p, const DenseOptions& o,
                               Reasons* reasons) const {
  CheckMixing(p, reasons);
  const View* seq = p.Find(kSeq);
  if (seq != nullptr && seq->shape.rank == 3 && o.hidden_scope == HiddenScope::kMerged) {
    reasons->Invalid(kSeq, " must be [L,L] with hidden_scope merged, got ", ToString(seq->shape));
  } else {
    CheckRows(p, kSeq, kSeqShape, reasons);
  }
  CheckHidden(p, o, reasons);
  if (!p.HasSizesOf("v")) return;
  CheckDrawn(p, kSeq, Named(kSeq, p.Nk, o.seed), {p.Nk, p.Nk}, reasons);
  const int64_t C = ChannelsOf(p);
  if (!o.mix_hidden || C == 0) return;
  const Shape drawn = IsPerHead(o) ? Shape{p.Hkv, p.Dv, p.Dv} : Shape{C, C};
  CheckDrawn(p, kHidden, Named(kHidden, C, o.seed), drawn, reasons);
}

std::string DenseMixing::BranchOf(const ProblemShape& p, const DenseOptions& o) const {
  // One matrix for all heads takes another path than one for each.
  const View* seq = p.Find(kSeq);
  const bool is_per_head = seq != nullptr && seq->shape.rank == 3;
  return absl::StrCat(MixBranch(p, o.causal), is_per_head ? "h" : "");
}

Tensor DenseMixing::SeqKernel(Ops& ops, const Inputs& in, const DenseOptions& o) const {
  std::vector<DrawParams> params;
  std::vector<Shape> shapes;
  for (const ProblemShape& p : in.problems) {
    params.push_back(Named(kSeq, p.Nk, o.seed));
    shapes.push_back({p.Nk, p.Nk});
  }
  const Tensor table = SentOrDrawn(ops, in, kSeq, params, shapes);
  return WithRank(ops, FirstRows(ops, in, FirstRows(ops, in, table, -2), -1), 4);
}

Tensor DenseMixing::HiddenKernel(Ops& ops, const Inputs& in, const DenseOptions& o) const {
  std::vector<DrawParams> params;
  std::vector<Shape> shapes;
  for (const ProblemShape& p : in.problems) {
    const int64_t C = IsPerHead(o) ? p.Dv : p.Hkv * p.Dv;
    params.push_back(Named(kHidden, C, o.seed));
    shapes.push_back(IsPerHead(o) ? Shape{p.Hkv, C, C} : Shape{C, C});
  }
  return WithRank(ops, SentOrDrawn(ops, in, kHidden, params, shapes), 4);
}

Outputs DenseMixing::Formula(Ops& ops, const Inputs& in, const DenseOptions& o) const {
  const MixedRows rows(ops, in);
  const Tensor seq = SeqKernel(ops, in, o);
  Tensor x = rows.Clean(in.v);  // [B,H,N,Dv]
  if (o.mix_hidden) {
    if (!IsPerHead(o)) x = MergeHeads(ops, x);
    x = ops.MatMul(x, HiddenKernel(ops, in, o));
  }
  if (!ops.status().ok()) return {};
  bool is_shared = true;
  for (size_t p = 0; p < seq.size(); ++p) is_shared = is_shared && seq[p].shape[1] == 1;
  // One matrix for all heads is one product over the channels of all of them.
  const bool mixes_heads = o.mix_hidden && !IsPerHead(o);
  const bool is_wide = is_shared && (mixes_heads || !rows.IsSparse(o.causal));
  if (is_wide && !mixes_heads) x = MergeHeads(ops, x);
  Tensor y = rows.Mix(seq, x, o.causal, /*is_returned=*/true);
  if (is_wide) y = SplitHeads(ops, y, in.problems[0].Dv);
  const Outputs outputs{.out = rows.Out(y)};
  CountMixedPairs(ops, in, o.causal);
  return outputs;
}

}  // namespace attnd
