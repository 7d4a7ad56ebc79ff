// Reformer (Kitaev, Kaiser and Levskaya 2020, "LSH attention", eq. 2-5): q serves as the keys, too.
// n_hashes rounds of random rotations sort the n rows by bucket; a query sees the chunk of
// chunk_len rows that it stands in and its neighbours:
//   s_ij = scale q_i . k_j + bias_ij,  k_j = q_j over its root mean square or norm;  s_ii: below
//   out_i = sum_j exp(s_ij - lse_i) v_j over the slots of all rounds, lse_i = log sum_j exp(s_ij)
// With dedup a key counts once, in the first round that shows it, which is what subtracting the
// logarithm of its number of slots gives. A token sees itself with the score self_value, so only
// where it sees nothing else: it is hidden in every round and comes back as a state of its own.
// At most chunk_len rows are not hashed: they see each other.
// q [B,H,N,D], v [B,Hkv,N,Dv]; query head h reads kv head h / (H/Hkv).
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "kernels/method/common_inputs.h"
#include "kernels/method/seq_groups.h"
#include "kernels/method/tensors.h"
#include "kernels/methods/lowrank/rows.h"
#include "kernels/methods/reformer/hash.h"
#include "kernels/methods/reformer/options.h"
#include "kernels/methods/reformer/seqs.h"
#include "kernels/ops/feature_map.h"
#include "kernels/ops/ops.h"

namespace attnd {
namespace {

using O = ReformerOptions;

std::vector<TensorInfo> ReformerInputs() {
  std::vector<TensorInfo> inputs = CommonInputs();
  std::erase_if(inputs, [](const TensorInfo& input) { return input.name == "k"; });
  for (TensorInfo& input : inputs) {
    if (input.name == "q") input.help = "queries, and keys before their norm";
    if (input.name == "q_lengths") input.help = "0..Nq: as kv_lengths when absent";
    if (input.name == "kv_lengths") input.help = "0..Nk: rows beyond are not hashed";
  }
  inputs.push_back({"rotations", "[H,D,n_hashes,S] or [1,D,n_hashes,S]", "float",
                    "S: the sum of n_buckets / 2; normals, drawn when absent"});
  inputs.push_back({"buckets", "[B,H,n_hashes,Nq]", "int32",
                    "any numbers, in place of hashing; not with rotations"});
  inputs.push_back(Differentiable("bias", "broadcastable to [B,H,Nq,Nk]",
                                  "added to the scores of other tokens"));
  return inputs;
}

class Reformer : public MethodOf<O> {
 public:
  Reformer()
      : MethodOf(
            {.id = "reformer",
             .summary = "Shared queries and keys, sorted by hashes into chunks",
             .reference = "Kitaev et al. 2020 (arXiv 2001.04451), eq. 2-5",
             .cost = "2 (D + Dv) FLOPs per visible pair, n n_hashes (1 + before + after) chunk_len "
                     "pairs, D n_buckets n_hashes FLOPs per token and head; memory O(n n_hashes)",
             .inputs = ReformerInputs(),
             .outputs = {{"out", "[B,H,Nq,Dv]", "float", "weighted sums of values"},
                         {"lse", "[B,H,Nq]", "float32",
                          "natural log of the sum of weights; -inf: beyond the lengths"}},
             .support = {.causal = true, .lengths = true, .gqa = true, .lse = true}},
            ReformerLines()) {}

 protected:
  void CheckProblem(const ProblemShape& p, const O& o, Reasons* reasons) const override {
    CheckReformer(p, o, reasons);
  }

  // Requests of one batch have the same launches.
  std::string BranchOf(const ProblemShape& p, const O& o) const override {
    return absl::StrCat(HasHashed(p, o) ? "hashed " : "", ReformerFarRows(p, o) > 0 ? "far " : "",
                        ReformerPartsOf(p, o));
  }

  Outputs Formula(Ops& ops, const Inputs& in, const O& o) const override {
    std::optional<ReformerBuckets> buckets;
    if (HasHashed(in.problems[0], o)) buckets.emplace(ops, in, o);
    if (!ops.status().ok()) return {};
    const ReformerSeqs seqs = ReformerSeqsOf(ops, in, o, buckets.has_value() ? &*buckets : nullptr);
    buckets.reset();
    // Keys and values have as many heads as q.
    std::vector<int64_t> groups;
    for (const ProblemShape& p : in.problems) groups.push_back(p.H / p.Hkv);
    const Tensor v = RepeatHeads(ops, in.v, groups);
    const double D = static_cast<double>(in.problems[0].D);
    double scale = o.scale.value_or(1 / std::sqrt(D));
    if (o.key_norm == KeyNorm::kRms) scale *= std::sqrt(D);  // |x| = sqrt(D) rms(x)
    const Tensor k = Keys(ops, in, o, D);
    AttendTensors terms;
    if (const Tensor bias = Sent(in, "bias"); !bias.empty()) terms.bias = WithRank(ops, bias, 4);
    if (!seqs.far_rows.empty()) {
      terms.k2 = RowsOf(ops, k, seqs.far_rows);
      terms.v2 = RowsOf(ops, v, seqs.far_rows);
    }
    if (!ops.status().ok()) return {};

    std::vector<AttendOut> parts = {{v, seqs.self_lse}};
    for (size_t first = 0; first < seqs.parts.size(); first += kMostParts) {
      const auto begin = seqs.parts.begin() + static_cast<int64_t>(first);
      const auto end =
          begin + static_cast<int64_t>(std::min(kMostParts, seqs.parts.size() - first));
      parts.push_back(
          ops.Attend(in.q, k, v, {.scale = scale}, std::vector(begin, end), terms, DType::kF32));
      if (!ops.status().ok()) return {};
    }
    std::swap(parts.front(), parts.back());  // the result lies in memory as q does
    const AttendOut merged = ops.Merge(parts, in.q[0].dtype);
    return {.out = merged.out, .lse = merged.lse, .visible_pairs = seqs.visible_pairs};
  }

 private:
  // Rounds whose results are merged together: so many are in memory at a time, and a few more.
  static constexpr size_t kMostParts = 16;

  // Rows of x [B,H,N,D] in its dtype.
  static Tensor RowsOf(Ops& ops, const Tensor& x, const Tensor& rows) {
    const Tensor found = ops.Gather(x, rows);
    return !ops.status().ok() || x[0].dtype == DType::kF32 ? found : ops.Copy(found, x[0].dtype);
  }

  static Tensor Keys(Ops& ops, const Inputs& in, const O& o, double D) {
    if (o.key_norm == KeyNorm::kNone) return in.q;
    // NaN beyond the lengths: a gradient of 0 would not hide it.
    const Tensor x = ZerosBeyond(ops, in, in.q, "kv_lengths");
    if (o.key_norm == KeyNorm::kUnit) {
      return FeaturesOf(ops, x, {.norm = RowNorm::kL2, .floor = 1e-12});
    }
    // x / sqrt(|x|^2 + D 1e-6) is x / sqrt(mean x^2 + 1e-6) over sqrt(D).
    return FeaturesOf(ops, x, {.norm = RowNorm::kL2, .eps = D * 1e-6});
  }
};

}  // namespace

ATTND_METHOD(reformer, Reformer)

}  // namespace attnd
