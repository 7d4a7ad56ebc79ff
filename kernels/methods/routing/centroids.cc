#include "kernels/methods/routing/centroids.h"

#include "kernels/method/tensors.h"

namespace attnd {
namespace {

constexpr float kSmoothing = 1e-5f;

// x [b,Hx,n,D] as [b,Hx,1,n,D], and the shape of a tensor [b,H,..] beside it.
Tensor WithGroups(Ops& ops, const Tensor& x) {
  std::vector<Shape> shapes;
  for (size_t i = 0; i < x.size(); ++i) {
    const Shape& s = x[i].shape;
    shapes.push_back({s[0], s[1], 1, s[2], s[3]});
  }
  return ops.Reshape(x, shapes);
}
Shape InGroups(const Shape& of_heads, int64_t heads) {
  Shape shape = of_heads;
  shape.rank = of_heads.rank + 1;
  for (int i = of_heads.rank; i > 2; --i) shape.dims[i] = of_heads[i - 1];
  shape.dims[1] = heads;
  shape.dims[2] = of_heads[1] / heads;
  return shape;
}

// x [b,.,.,.] of every part -> its sum over the sequences of each request, [1,.,.,.].
Tensor SumOfRequest(Ops& ops, const Inputs& in, const SeqSplit& seqs, const Tensor& x) {
  if (!ops.status().ok()) return {};
  if (!seqs.is_split()) return ops.Reduce(ReduceOp::kSum, x, 0);
  std::vector<Shape> shapes(in.problems.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t problem = seqs.parts()[i].problem;
    shapes[problem] = x[i].shape;
    shapes[problem].dims[0] = in.problems[problem].B;
  }
  return ops.Reduce(ReduceOp::kSum, ops.JoinBatch(x, shapes), 0);
}

// sum (norm(x) - mean)^2 over the rows of each request, [1,1,1,1].
Tensor SquaredDistances(Ops& ops, const Inputs& in, const RoutedRows& x,
                        const CentroidInputs& inputs) {
  const Tensor means = ops.Gather(inputs.of_parts, x.nearest);
  if (!ops.status().ok()) return {};
  std::vector<Shape> groups, flat;
  for (size_t i = 0; i < means.size(); ++i) {
    const Shape& s = means[i].shape;
    groups.push_back(InGroups(s, x.normed[i].shape[1]));
    flat.push_back({s[0], 1, 1, s[1] * s[2] * s[3]});
  }
  const Tensor difference =
      ops.Apply(ElementOp::kSubtract, WithGroups(ops, x.normed), ops.Reshape(means, groups));
  const Tensor squares = ops.Reshape(ops.Apply(ElementOp::kSquare, difference), flat);
  return SumOfRequest(ops, in, inputs.parts.seqs(), ops.Reduce(ReduceOp::kSum, squares, 3));
}

// commitment / (rows D) of every request, 0 without rows.
Tensor Factors(Ops& ops, const Inputs& in, const RoutingOptions& o, const RoutedParts& parts) {
  std::vector<double> rows(in.problems.size(), 0);
  for (size_t i = 0; i < parts.size(); ++i) {
    const SeqSplit::Part& part = parts.seqs().parts()[i];
    const ProblemShape& p = in.problems[part.problem];
    const int64_t count = parts.seqs().is_split() ? part.count : p.B;
    rows[part.problem] += static_cast<double>(p.H * count) *
                          static_cast<double>(parts.nq(i) + (o.shared_qk ? 0 : parts.nk(i)));
  }
  std::vector<std::vector<float>> values;
  for (size_t p = 0; p < rows.size(); ++p) {
    const double elements = rows[p] * static_cast<double>(in.problems[p].D);
    values.push_back({static_cast<float>(elements == 0 ? 0 : o.commitment / elements)});
  }
  return ops.FromHost(std::vector<Shape>(rows.size(), Shape{1, 1, 1, 1}), std::move(values));
}

// Rows of every centroid, and their sum: [1,H,C,1] and [1,H,C,D] of each request.
struct Assigned {
  Tensor counts, sums;
};
Assigned AssignedRows(Ops& ops, const Inputs& in, const RoutedRows& x,
                      const CentroidInputs& inputs) {
  const Tensor& nearest = x.nearest;
  std::vector<Shape> ones, groups, sums;
  std::vector<int64_t> clusters;
  for (size_t i = 0; i < nearest.size(); ++i) {
    const Shape& s = nearest[i].shape;
    ones.push_back({s[0], s[1], s[2], 1});
    groups.push_back(InGroups(s, x.normed[i].shape[1]));
    clusters.push_back(inputs.of_parts[i].shape[2]);
    sums.push_back({s[0], s[1], clusters.back(), x.normed[i].shape[3]});
  }
  const Tensor counts = ops.Scatter(ops.Constant(1, ones), nearest, clusters);
  const Tensor sum =
      ops.Scatter(WithGroups(ops, ops.Stop(x.normed)), ops.Reshape(nearest, groups), clusters);
  const SeqSplit& seqs = inputs.parts.seqs();
  return {SumOfRequest(ops, in, seqs, counts), SumOfRequest(ops, in, seqs, ops.Reshape(sum, sums))};
}

}  // namespace

Tensor AuxLoss(Ops& ops, const Inputs& in, const RoutingOptions& o, const CentroidInputs& x) {
  Tensor sum = SquaredDistances(ops, in, x.queries, x);
  if (!o.shared_qk) {
    sum = ops.Apply(ElementOp::kAdd, sum, SquaredDistances(ops, in, x.keys, x));
  }
  return ops.Reshape(ops.Apply(ElementOp::kMultiply, sum, Factors(ops, in, o, x.parts)),
                     std::vector<Shape>(in.problems.size(), Shape{1}));
}

std::map<std::string, Tensor> UpdatedCentroids(Ops& ops, const Inputs& in, const RoutingOptions& o,
                                               const CentroidInputs& x) {
  Assigned rows = AssignedRows(ops, in, x.queries, x);
  if (!o.shared_qk) {
    const Assigned of_keys = AssignedRows(ops, in, x.keys, x);
    rows.counts = ops.Apply(ElementOp::kAdd, rows.counts, of_keys.counts);
    rows.sums = ops.Apply(ElementOp::kAdd, rows.sums, of_keys.sums);
  }
  if (!ops.status().ok()) return {};
  std::vector<Shape> of_counts, of_means, counts_out, means_out;
  for (size_t p = 0; p < x.means.size(); ++p) {
    const Shape& s = x.means[p].shape;
    of_counts.push_back({1, s[0], s[1], 1});
    of_means.push_back({1, s[0], s[1], s[2]});
    counts_out.push_back({s[0], s[1]});
    means_out.push_back(s);
  }
  const Tensor means = ops.Reshape(x.means, of_means);
  const Tensor sent_count = Sent(in, "ema_count"), sent_means = Sent(in, "ema_means");
  const double d = o.ema_decay;
  Tensor count = ops.Affine(rows.counts, 1 - d);
  if (!sent_count.empty()) {
    count = ops.Apply(ElementOp::kAdd, ops.Affine(ops.Reshape(sent_count, of_counts), d), count);
  }
  const Tensor before = sent_means.empty() ? means : ops.Reshape(sent_means, of_means);
  const Tensor sums =
      ops.Apply(ElementOp::kAdd, ops.Affine(before, d), ops.Affine(rows.sums, 1 - d));
  if (!ops.status().ok()) return {};
  // (count + e) / (total + C e) total: no cluster is divided by a count of 0.
  const Tensor smooth = ops.Affine(count, 1, kSmoothing);
  const Tensor total = ops.Reduce(ReduceOp::kSum, count, 2);
  const Tensor share = ops.Apply(ElementOp::kDivide, smooth, ops.Reduce(ReduceOp::kSum, smooth, 2));
  const Tensor moved =
      ops.Apply(ElementOp::kDivide, sums, ops.Apply(ElementOp::kMultiply, share, total));
  if (!ops.status().ok()) return {};
  // Without a row so far the centroids stay.
  const Tensor is_empty = ops.Apply(ElementOp::kEqual, total, NumberLike(ops, 0, total));
  return {{"centroids", ops.Reshape(ops.Select(is_empty, means, moved), means_out)},
          {"ema_count", ops.Reshape(count, counts_out)},
          {"ema_means", ops.Reshape(sums, means_out)}};
}

}  // namespace attnd
