// Routing attention (Roy et al. 2021, algorithm 1): centroids mu_c of k-means over normalised rows
// each take their best rows, and attend among them:
//   A_ic = norm(q_i) . mu_c, B_jc = norm(k_j) . mu_c; Q_c, K_c: the w (w_k) largest of column c
//   o_i^c = softmax of scale q~_i . k~_j over {memory of c} and {j in K_c, seen by i}
//   out_i = sum of o_i^c over the n_i clusters in which i sees something / (n_i + mean_eps)
// q [B,H,Nq,D], k [B,Hkv,Nk,D], v [B,Hkv,Nk,Dv]; query head h reads kv head h / (H/Hkv) and routes
// its keys by its own centroids. Clusters are heads of one attention over gathered rows. Which rows
// are members is a constant for the gradient.
#include "absl/strings/str_cat.h"
#include "kernels/methods/routing/bias.h"
#include "kernels/methods/routing/centroids.h"
#include "kernels/methods/routing/clusters.h"
#include "kernels/methods/routing/options.h"

namespace attnd {
namespace {

class Routing : public MethodOf<RoutingOptions> {
 public:
  Routing()
      : MethodOf({.id = "routing",
                  .summary = "Attention within clusters of k-means, the best rows of each",
                  .reference = "Roy et al. 2021 (arXiv 2003.05997), algorithm 1",
                  .cost = "2 (D + Dv) FLOPs per pair within C clusters of w members, C w^2 pairs, "
                          "and 2 n C D to compare; memory O(n C + C w)",
                  .inputs = RoutingInputs(),
                  .outputs = RoutingOutputs(),
                  .support = {.causal = true, .lengths = true, .cross = true, .gqa = true}},
                 RoutingLines()) {}

 protected:
  void CheckProblem(const ProblemShape& p, const RoutingOptions& o,
                    Reasons* reasons) const override {
    CheckRouting(p, o, reasons);
  }

  // What some requests copy and others do not, so that plans bound a batch.
  std::string BranchOf(const ProblemShape& p, const RoutingOptions& o) const override {
    return absl::StrCat(p.H != p.Hkv ? "groups" : "", HasUnseenRows(p, o) ? "+unseen" : "",
                        BiasBranch(p));
  }

  Outputs Formula(Ops& ops, const Inputs& in, const RoutingOptions& o) const override {
    const RoutedParts parts(ops, in, o);
    const Tensor means = MeansOf(ops, in, o), of_parts = parts.seqs().Shared(means);
    const RoutedRows queries =
        RouteRows(ops, parts, RowRole::kQueries, parts.Queries(in.q), of_parts, o);
    RoutedRows keys;
    if (!o.shared_qk) {
      keys = RouteRows(ops, parts, RowRole::kKeys, parts.Keys(in.k), of_parts, o);
    }
    const Tensor out = AttendInClusters(ops, in, o, {parts, queries, keys, parts.Values(in.v)});
    if (!ops.status().ok()) return {};
    Outputs outputs{.out = parts.seqs().JoinOut(out, in.problems[0].Dv)};
    const CentroidInputs of_centroids{parts, queries, keys, means, of_parts};
    if (o.return_centroids && !ops.wants_gradients_alone()) {
      outputs.extra = UpdatedCentroids(ops, in, o, of_centroids);
    }
    if (o.aux_loss) outputs.extra["aux"] = AuxLoss(ops, in, o, of_centroids);
    return outputs;
  }
};

}  // namespace

ATTND_METHOD(routing, Routing)

}  // namespace attnd
