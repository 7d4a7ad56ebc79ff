#include "kernels/methods/routing/clusters.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/method/drawn.h"
#include "kernels/method/tensors.h"
#include "kernels/methods/lowrank/rows.h"
#include "kernels/methods/routing/bias.h"
#include "kernels/ops/feature_map.h"
#include "kernels/pattern/predicates/windows.h"
#include "kernels/pattern/shapes/windows.h"

namespace attnd {
namespace {

constexpr double kNormEps = 1e-6;
constexpr float kSelfLogit = -5e4f;

Tensor UnitRows(Ops& ops, const Tensor& x) {
  return FeaturesOf(ops, x, {.norm = RowNorm::kL2, .floor = 1e-12});
}

// normed [b,Hx,n,D] . mean of every centroid of every query head, [b,H,C,n].
Tensor Scores(Ops& ops, const Tensor& normed, const Tensor& means) {
  if (!ops.status().ok()) return {};
  // A head of keys is compared with the means of each of its query heads.
  std::vector<Shape> of_means, columns, scores;
  for (size_t i = 0; i < normed.size(); ++i) {
    const Shape &s = normed[i].shape, &m = means[i].shape;
    of_means.push_back({1, s[1], m[1] / s[1], m[2], m[3]});
    columns.push_back({s[0], s[1], 1, s[3], s[2]});
    scores.push_back({s[0], m[1], m[2], s[2]});
  }
  const Tensor x = ops.Reshape(ops.Transpose(ops.Stop(normed), 2, 3), columns);
  return ops.Reshape(ops.MatMul(ops.Reshape(means, of_means), x), scores);
}

// [b,Hx,n,d] -> rows of every member, [b,H C,w,d].
Tensor Gathered(Ops& ops, const Tensor& x, const Tensor& members) {
  if (!ops.status().ok()) return {};
  std::vector<Shape> lists, clusters;
  for (size_t i = 0; i < x.size(); ++i) {
    const Shape &s = x[i].shape, &m = members[i].shape;
    lists.push_back({s[0], s[1], m[1] / s[1] * m[2] * m[3]});
    clusters.push_back({s[0], m[1] * m[2], m[3], s[3]});
  }
  return ops.Reshape(ops.Gather(x, ops.Reshape(members, lists)), clusters);
}

// Pairs of members by their places: both lists ascend, so that with shared rows place is position.
PatternSource PlacesSource(const RoutingOptions& o, int64_t w, int64_t w_k) {
  if (!o.shared_qk || !(o.causal || o.self_mask)) {
    return BandSource(w, w_k, kUnbounded, kUnbounded);
  }
  if (o.causal) return BandSource(w, w_k, kUnbounded, o.self_mask ? -1 : 0);
  const PatternCounts counts{
      .pairs = static_cast<double>(w) * static_cast<double>(w - 1),
      .tiles = WindowTiles({w, w}, Canonical(w, w, BandWindow(kUnbounded, kUnbounded))),
      .runs_of_row = 8,
      .masks = 16,
      .slot_bytes = 0};
  return SourceOf(w, w, Not(Band(0, 0)), counts);
}

class ClusterAttention {
 public:
  ClusterAttention(Ops& ops, const Inputs& in, const RoutingOptions& o, const ClusterInputs& x)
      : ops_(ops),
        in_(in),
        o_(o),
        x_(x),
        queries_(x.queries.members),
        keys_(o.shared_qk ? queries_ : x.keys.members) {}

  Tensor Out() const {
    const AttendOut attended = Merged();
    if (!ops_.status().ok()) return {};
    std::vector<Shape> lists, rows, ones, of_rows;
    std::vector<int64_t> nq;
    for (size_t i = 0; i < queries_.size(); ++i) {
      const Shape& m = queries_[i].shape;
      const int64_t taken = m[2] * m[3];
      lists.push_back({m[0], m[1], taken});
      rows.push_back({m[0], m[1], taken, attended.out[i].shape[3]});
      ones.push_back({m[0], m[1], taken, 1});
      nq.push_back(x_.parts.nq(i));
      of_rows.push_back({m[0], m[1], nq.back()});
    }
    const Tensor index = ops_.Reshape(queries_, lists);
    const Tensor seen = MaySkip() ? ops_.Reshape(Seen(attended.lse), ones) : ops_.Constant(1, ones);
    const Tensor counts = ops_.Affine(ops_.Scatter(seen, index, nq), 1, o_.mean_eps);
    return ops_.Scatter(ops_.Reshape(attended.out, rows), index, nq,
                        {.divisor = ops_.Reshape(counts, of_rows), .is_returned = true});
  }

 private:
  // Whether a query may see nothing in a cluster.
  bool MaySkip() const {
    return in_.tensors.contains("bias") || (o_.causal && !o_.shared_qk) || x_.parts.has_unseen();
  }

  // 1 where a query sees something, else 0.
  Tensor Seen(const Tensor& lse) const {
    const Tensor nothing = NumberLike(ops_, -std::numeric_limits<float>::infinity(), lse);
    const Tensor is_empty = ops_.Apply(ElementOp::kEqual, ops_.Stop(lse), nothing);
    return ops_.Affine(is_empty, -1, 1);
  }

  // Attention of every cluster over its members, itself and its memory: [b,H C,w,Dv].
  AttendOut Merged() const {
    const Operands operands = Rows();
    const Tensor v = Gathered(ops_, x_.v, keys_);
    if (!ops_.status().ok()) return {};
    const double D = static_cast<double>(in_.problems[0].D);
    const AttendParams params{.scale = o_.scale.value_or(1 / std::sqrt(D))};
    std::vector<AttendOut> parts = {ops_.Attend(
        operands.q, operands.k, v, params, SeqsOf(operands.q, operands.k),
        {.bias = BiasOfMembers(ops_, in_, o_, x_.parts, {.queries = queries_, .keys = keys_})})};
    if (o_.self_mask) parts.push_back({v, SelfLogits()});
    if (in_.tensors.contains("mem_k") || in_.tensors.contains("mem_v")) {
      const Tensor k = Memory("mem_k", &ProblemShape::D, operands.q);
      const Tensor values = Memory("mem_v", &ProblemShape::Dv, operands.q);
      if (!ops_.status().ok()) return {};
      std::vector<int64_t> slots;
      for (size_t i = 0; i < k.size(); ++i) slots.push_back(k[i].shape[2]);
      parts.push_back(
          ops_.Attend(operands.q, k, values, params, AllPairs(ops_, operands.q, slots)));
    }
    if (!ops_.status().ok()) return {};
    return parts.size() == 1 ? parts[0] : ops_.Merge(parts);
  }

  // The rows of logits, [b,H C,w,D].
  struct Operands {
    Tensor q, k;
  };
  Operands Rows() const {
    const auto normed = [&](const RoutedRows& x) {
      if (o_.attend_norm != AttendNorm::kLayerNorm) return x.rows;
      return o_.route_norm == RouteNorm::kLayerNorm ? x.normed : ops_.LayerNorm(x.rows, kNormEps);
    };
    const Tensor q = Gathered(ops_, normed(x_.queries), queries_);
    const Tensor k = o_.shared_qk ? q : Gathered(ops_, normed(x_.keys), keys_);
    return {q, o_.attend_norm == AttendNorm::kL2Key ? UnitRows(ops_, k) : k};
  }

  AttendSeqs SeqsOf(const Tensor& q, const Tensor& k) const {
    AttendSeqs seqs;
    for (size_t i = 0; i < q.size() && ops_.status().ok(); ++i) {
      const int64_t w = q[i].shape[2], w_k = k[i].shape[2];
      AddSeqs(ops_, ops_.Seq(w, w_k, PlacesSource(o_, w, w_k)), q[i].shape[0],
              &seqs.emplace_back());
    }
    return seqs;
  }

  // [b,H C,w]; -inf: the query is no key.
  Tensor SelfLogits() const {
    std::vector<Shape> shapes;
    for (size_t i = 0; i < queries_.size(); ++i) {
      const Shape& m = queries_[i].shape;
      shapes.push_back({m[0], m[1] * m[2], m[3]});
      ops_.stream().work().visible_pairs += static_cast<double>(shapes.back().size());
    }
    const Tensor logits = ops_.Constant(kSelfLogit, shapes);
    if (!x_.parts.has_unseen()) return logits;
    const Tensor is_unseen = ops_.Reshape(IsUnseen(ops_, x_.parts, keys_), shapes);
    if (!ops_.status().ok()) return {};
    const float nothing = -std::numeric_limits<float>::infinity();
    return ops_.Select(is_unseen, NumberLike(ops_, nothing, is_unseen), logits);
  }

  // mem_k or mem_v of every part, [b,H C,M,..].
  Tensor Memory(const char* name, int64_t ProblemShape::*size, const Tensor& q) const {
    std::vector<Shape> drawn, clusters, expanded;
    for (const ProblemShape& p : in_.problems) {
      const RoutingSizes sizes(p, o_);
      drawn.push_back({p.H, sizes.clusters, sizes.slots, p.*size});
      clusters.push_back({p.H * sizes.clusters, sizes.slots, p.*size});
    }
    Tensor memory = SentOrDrawn(ops_, in_, name, RoutingDraw(o_, name), drawn);
    if (!ops_.status().ok()) return {};
    if (memory[0].dtype != DType::kF32) memory = ops_.Copy(memory);
    const Tensor parts = x_.parts.seqs().Shared(ops_.Reshape(memory, clusters));
    if (!ops_.status().ok()) return {};
    for (size_t i = 0; i < parts.size(); ++i) {
      Shape shape = parts[i].shape;
      shape.dims[0] = q[i].shape[0];
      expanded.push_back(shape);
    }
    return ops_.Expand(parts, expanded);
  }

  Ops& ops_;
  const Inputs& in_;
  const RoutingOptions& o_;
  const ClusterInputs& x_;
  const Tensor queries_, keys_;  // members
};

}  // namespace

RoutedParts::RoutedParts(Ops& ops, const Inputs& in, const RoutingOptions& o)
    : ops_(ops),
      seqs_(ops, in, kPlannedProblems, o.shared_qk ? QueryRows::kLikeKeys : QueryRows::kAll),
      is_shared_(o.shared_qk),
      has_unseen_(HasUnseenRows(in.problems[0], o)) {
  for (const ProblemShape& p : in.problems) sizes_.emplace_back(p, o);
}

int64_t RoutedParts::nq(size_t part) const { return seqs_.parts()[part].lengths.nq; }
int64_t RoutedParts::nk(size_t part) const {
  return is_shared_ ? nq(part) : seqs_.parts()[part].lengths.nk;
}
Tensor RoutedParts::Queries(const Tensor& x) const { return seqs_.Queries(x); }
Tensor RoutedParts::Keys(const Tensor& x) const { return is_shared_ ? Queries(x) : seqs_.Keys(x); }
int64_t RoutedParts::seen(size_t part) const {
  return std::min(nk(part), seqs_.parts()[part].lengths.nk);
}
Tensor RoutedParts::Values(const Tensor& v) const {
  if (!has_unseen_) return Keys(v);
  const Tensor keys = seqs_.Keys(v);
  if (!ops_.status().ok()) return {};
  std::vector<int64_t> rows;
  std::vector<Shape> missing;
  for (size_t i = 0; i < keys.size(); ++i) {
    const Shape& s = keys[i].shape;
    rows.push_back(seen(i));
    missing.push_back({s[0], s[1], nk(i) - rows.back(), s[3]});
  }
  // v may hold anything there, which a weight of 0 does not hide.
  constexpr int kRows = 2;
  return ops_.Concat({ops_.Slice(keys, kRows, {0}, rows), ops_.Constant(0, missing)}, kRows);
}

Tensor MeansOf(Ops& ops, const Inputs& in, const RoutingOptions& o) {
  if (Tensor sent = Sent(in, "means"); !sent.empty()) return sent;
  std::vector<Shape> shapes;
  for (const ProblemShape& p : in.problems) {
    shapes.push_back({p.H, RoutingSizes(p, o).clusters, p.D});
  }
  return ops.LayerNorm(ops.Draw(RoutingDraw(o, "means"), shapes), kNormEps);
}

RoutedRows RouteRows(Ops& ops, const RoutedParts& parts, RowRole role, const Tensor& rows,
                     const Tensor& means, const RoutingOptions& o) {
  RoutedRows routed{.rows = rows, .normed = rows};
  if (o.route_norm == RouteNorm::kLayerNorm) routed.normed = ops.LayerNorm(rows, kNormEps);
  if (o.route_norm == RouteNorm::kL2) routed.normed = UnitRows(ops, rows);
  const Tensor scores = Scores(ops, routed.normed, means);
  if (!ops.status().ok()) return {};
  std::vector<int64_t> counts;
  std::vector<Shape> of_rows;
  for (size_t i = 0; i < scores.size(); ++i) {
    const Shape& s = scores[i].shape;
    const RoutingSizes& sizes = parts.sizes(i);
    counts.push_back(std::min(role == RowRole::kKeys ? sizes.kv_window : sizes.window, s[3]));
    of_rows.push_back({s[0], s[1], s[3]});
  }
  routed.members = ops.TopK(scores, counts, /*by_index=*/true);
  if (o.aux_loss || o.return_centroids) {
    routed.nearest = ops.Reshape(ops.ArgMax(ops.Transpose(scores, 2, 3)), of_rows);
  }
  return routed;
}

Tensor AttendInClusters(Ops& ops, const Inputs& in, const RoutingOptions& o,
                        const ClusterInputs& inputs) {
  if (!ops.status().ok()) return {};
  return ClusterAttention(ops, in, o, inputs).Out();
}

}  // namespace attnd
