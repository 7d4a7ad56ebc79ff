// Sparse Sinkhorn Attention (Tay et al. 2020, section 3): blocks of keys and values are scored by
// blocks of queries and sorted softly; a query sees its own block and the one that is sorted to it.
//   R_uv = (mean of q in u) . (mean of k in v) / sqrt(D), or [sum of q in u ; sum of k in u] W_v
//   sinkhorn: L = (log(max(R, 0) + 1e-6) + noise) / tau, then `iters` times log-softmax over v and
//             over u; S = exp L
//   topk:     the n_top largest R_u, S_uv = softmax of R_u over the blocks that are not yet taken
//   K'_u[t] = sum_v S_uv K_v[t], V'_u[t] likewise
//   out_i = softmax(scale q_i [K'_u ; K_u]) [V'_u ; V_u]
// Causal, means run over all positions up to the first one of u and those of v, only v < u is
// sorted to u, and the sums over u run over u' <= u; topk puts n_top blocks of null_k, null_v
// before the others, with scores of 0. sortcut: every query sees the first n sorted blocks. q
// [B,H,Nq,D], k [B,Hkv,Nk,D], v [B,Hkv,Nk,Dv]; query head h reads kv head h / (H/Hkv).
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/method/method.h"
#include "kernels/method/seq_split.h"
#include "kernels/methods/lowrank/rows.h"
#include "kernels/methods/sinkhorn/blocks.h"
#include "kernels/methods/sinkhorn/options.h"
#include "kernels/methods/sinkhorn/sort.h"
#include "kernels/ops/ops.h"
#include "kernels/pattern/shapes/sorted_blocks.h"

namespace attnd {
namespace {

using O = SinkhornOptions;

class Sinkhorn : public MethodOf<O> {
 public:
  Sinkhorn()
      : MethodOf(
            {.id = "sinkhorn",
             .summary = "Blocks of keys, sorted softly to blocks of queries",
             .reference = "Tay et al. 2020 (arXiv 2002.11296), sections 3.1-3.4",
             .cost = "2 (D + Dv) FLOPs per visible pair, n b (1 + n_top) pairs, and n^2 (D + Dv) 2 "
                     "/ b to mix blocks (sinkhorn); memory O(n n_top + iters (n / b)^2)",
             .inputs = SinkhornInputs(),
             .outputs = {{"out", "[B,H,Nq,Dv]", "float", "weighted sums of values"},
                         {"lse", "[B,H,Nq]", "float32",
                          "natural log of the sum of weights; -inf: nothing is seen"}},
             .support = {.causal = true, .lengths = true, .cross = true, .gqa = true, .lse = true}},
            SinkhornLines()) {}

 protected:
  void CheckProblem(const ProblemShape& p, const O& o, Reasons* reasons) const override {
    CheckSinkhorn(p, o, reasons);
  }

  std::string BranchOf(const ProblemShape& p, const O& o) const override {
    const SinkhornKinds kinds = KindsOf(p, o);
    return absl::StrCat(kinds.has_local ? "local" : "", kinds.has_bias ? "+bias" : "",
                        p.H != p.Hkv ? "+groups" : "");
  }

  Outputs Formula(Ops& ops, const Inputs& in, const O& o) const override {
    const SeqSplit seqs(ops, in, kPlannedProblems, QueryRows::kLikeKeys);
    std::vector<SinkhornBlocks> blocks;
    blocks.reserve(seqs.parts().size());
    for (const SeqSplit::Part& part : seqs.parts()) {
      blocks.push_back(BlocksOf(part.lengths, o));
      if (!ops.stream().is_dry()) continue;
      ops.stream().work().host_bytes += part.count * static_cast<int64_t>(sizeof(SinkhornBlocks));
    }
    const SinkhornRun run{ops, in, o, seqs, blocks, KindsOf(in.problems[0], o)};
    const AttendOut attended = Attend(run, seqs.Queries(in.q), seqs.Keys(in.k), seqs.Keys(in.v));
    if (!ops.status().ok()) return {};
    return {.out = seqs.JoinOut(attended.out, in.problems[0].Dv),
            .lse = seqs.JoinLse(attended.lse)};
  }

 private:
  static AttendOut Attend(const SinkhornRun& run, const Tensor& q, const Tensor& k,
                          const Tensor& v) {
    Ops& ops = run.ops;
    const double D = static_cast<double>(run.in.problems[0].D);
    const AttendParams params{.scale = run.o.scale.value_or(1 / std::sqrt(D))};
    const SortedKeys sorted = Sorted(run, q, k, v);
    AttendTensors terms{.bias = sorted.bias};
    if (run.kinds.has_local) {
      terms.k2 = OfQueryHeads(run, k);
      terms.v2 = OfQueryHeads(run, v);
    }
    if (!ops.status().ok()) return {};
    // q, k and v have a part in the scores of blocks, too: their gradients are sums.
    return ops.Attend(q, sorted.k, sorted.v, params, {Seqs(run)}, terms, DType::kF32);
  }

  // Sorted keys are those of query heads, and both sources are of one dtype.
  static Tensor OfQueryHeads(const SinkhornRun& run, const Tensor& x) {
    if (!run.ops.status().ok()) return {};
    std::vector<int64_t> groups;
    for (size_t i = 0; i < x.size(); ++i) {
      groups.push_back(run.ProblemOf(i).H / run.ProblemOf(i).Hkv);
    }
    return RepeatHeadsDense(run.ops, x, groups);
  }

  static AttendSeqs Seqs(const SinkhornRun& run) {
    AttendSeqs seqs;
    if (!run.ops.status().ok()) return seqs;
    for (size_t i = 0; i < run.blocks.size(); ++i) {
      const SinkhornBlocks& b = run.blocks[i];
      const SortedBlocks seen = SeenOf(b, run.o);
      const AttendSeq seq =
          run.ops.Seq(b.lengths.nq, b.SortedKeys(),
                      run.kinds.has_local ? SortedAndLocal(seen) : SortedAlone(seen));
      AddSeqs(run.ops, seq, run.seqs.parts()[i].count, &seqs.emplace_back());
    }
    return seqs;
  }
};

}  // namespace

ATTND_METHOD(sinkhorn, Sinkhorn)

}  // namespace attnd
