#include "kernels/methods/routing/bias.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/method/tensors.h"

namespace attnd {
namespace {

// Dimensions of a bias with more than one element.
struct Extent {
  bool sequences = false, queries = false, keys = false;

  explicit Extent(const Shape& bias) {
    const auto varies = [&](int from_end) {
      return bias.rank >= from_end && bias[bias.rank - from_end] != 1;
    };
    sequences = varies(4);
    queries = varies(2);
    keys = varies(1);
  }
};

// [b|1,H|1,Nq|1,Nk|1] of every part.
Tensor OfParts(Ops& ops, const Tensor& bias, const RoutedParts& parts) {
  const Tensor whole = WithRank(ops, bias, 4);
  if (Extent(whole[0].shape).sequences) return parts.seqs().Whole(whole);
  std::vector<Shape> shapes;
  for (size_t p = 0; p < whole.size(); ++p) {
    const Shape& s = whole[p].shape;
    shapes.push_back({s[1], s[2], s[3]});
  }
  return parts.seqs().Shared(ops.Reshape(whole, shapes));
}

// [b|1,H|1,1,rows,columns]: every cluster reads the same.
Tensor OfClusters(Ops& ops, const Tensor& x) {
  std::vector<Shape> shapes;
  for (size_t i = 0; i < x.size(); ++i) {
    const Shape& s = x[i].shape;
    shapes.push_back({s[0], s[1], 1, s[2], s[3]});
  }
  return ops.Reshape(x, shapes);
}

// [b,H,C,w|1,w_k|1].
Tensor AtMembers(Ops& ops, const Tensor& bias, const RoutedParts& parts, const Members& members) {
  const Tensor of_parts = OfParts(ops, bias, parts);
  if (!ops.status().ok()) return {};
  const Extent extent(of_parts[0].shape);
  const Tensor x = OfClusters(ops, of_parts);
  if (extent.queries && extent.keys) return ops.GatherPairs(x, members.queries, members.keys);
  if (extent.queries) return ops.Gather(x, members.queries);
  if (extent.keys) return ops.Transpose(ops.Gather(ops.Transpose(x, 3, 4), members.keys), 3, 4);
  std::vector<Shape> shapes;
  for (size_t i = 0; i < x.size(); ++i) {
    const Shape& m = members.queries[i].shape;
    shapes.push_back({m[0], m[1], m[2], 1, 1});
  }
  // Attention repeats dimensions of 1 alone.
  return ops.Copy(ops.Expand(x, shapes));
}

// [b,H,C,w_k] -> [b,H,C,1,w_k].
Tensor WithRows(Ops& ops, const Tensor& x) {
  if (!ops.status().ok()) return {};
  std::vector<Shape> shapes;
  for (size_t i = 0; i < x.size(); ++i) {
    const Shape& s = x[i].shape;
    shapes.push_back({s[0], s[1], s[2], 1, s[3]});
  }
  return ops.Reshape(x, shapes);
}

// 1 where a key comes after the query: [b,H,C,w,w_k].
Tensor IsLater(Ops& ops, const Inputs& in, const RoutedParts& parts, const Members& members) {
  std::vector<Shape> rows, columns, numbers;
  std::vector<std::vector<float>> offsets;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Shape &q = members.queries[i].shape, &k = members.keys[i].shape;
    rows.push_back({q[0], q[1], q[2], q[3], 1});
    columns.push_back({k[0], k[1], k[2], 1, k[3]});
    const ProblemShape& p = in.problems[parts.seqs().parts()[i].problem];
    numbers.push_back({1, 1, 1, 1, 1});
    offsets.push_back({static_cast<float>(p.Nk - p.Nq)});
  }
  const Tensor last = ops.Apply(ElementOp::kAdd, ops.Reshape(members.queries, rows),
                                ops.FromHost(numbers, std::move(offsets)));
  return ops.Apply(ElementOp::kGreater, ops.Reshape(members.keys, columns), last);
}

}  // namespace

Tensor IsUnseen(Ops& ops, const RoutedParts& parts, const Tensor& keys) {
  std::vector<Shape> numbers;
  std::vector<std::vector<float>> last;
  for (size_t i = 0; i < parts.size(); ++i) {
    numbers.push_back({1, 1, 1, 1});
    last.push_back({static_cast<float>(parts.seen(i) - 1)});
  }
  return ops.Apply(ElementOp::kGreater, keys, ops.FromHost(numbers, std::move(last)));
}

Tensor BiasOfMembers(Ops& ops, const Inputs& in, const RoutingOptions& o, const RoutedParts& parts,
                     const Members& members) {
  if (!ops.status().ok()) return {};
  const Tensor sent = Sent(in, "bias");
  const bool is_masked = o.causal && !o.shared_qk;
  if (sent.empty() && !is_masked && !parts.has_unseen()) return {};
  Tensor bias;
  if (!sent.empty()) bias = AtMembers(ops, sent, parts, members);
  if (is_masked || parts.has_unseen()) {
    const Tensor is_hidden = is_masked ? IsLater(ops, in, parts, members)
                                       : WithRows(ops, IsUnseen(ops, parts, members.keys));
    if (!ops.status().ok()) return {};
    const Tensor seen = bias.empty() ? NumberLike(ops, 0, is_hidden) : bias;
    const Tensor nothing = NumberLike(ops, -std::numeric_limits<float>::infinity(), is_hidden);
    bias = ops.Select(is_hidden, nothing, seen);
  }
  if (!ops.status().ok()) return {};
  std::vector<Shape> shapes;
  for (size_t i = 0; i < bias.size(); ++i) {
    const Shape& s = bias[i].shape;
    shapes.push_back({s[0], s[1] * s[2], s[3], s[4]});
  }
  return ops.Reshape(bias, shapes);
}

std::string BiasBranch(const ProblemShape& p) {
  const View* bias = p.Find("bias");
  if (bias == nullptr) return "";
  const Extent extent(bias->shape);
  return absl::StrCat(extent.sequences ? "+bias of B" : "", extent.queries ? "+bias of Nq" : "",
                      extent.keys ? "+bias of Nk" : "");
}

}  // namespace attnd
