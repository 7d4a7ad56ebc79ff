#include "kernels/methods/mixing/rows.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/pattern/base/window.h"
#include "kernels/pattern/shapes/windows.h"

namespace attnd {
namespace {

// Sequences of n rows, of which each sees all, or those up to itself.
AttendSeq SeqOfRows(Ops& ops, int64_t N, int64_t n, bool causal) {
  return ops.Seq(n, n, AllKeys({.Nq = N, .Nk = N, .lengths = {n, n}, .causal = causal}));
}

AttendSeqs SeqsOf(Ops& ops, const Inputs& in, bool causal) {
  AttendSeqs seqs;
  const bool is_planned = ops.stream().is_dry();
  for (const ProblemShape& p : in.problems) {
    std::vector<AttendSeq>& of_problem = seqs.emplace_back();
    const auto groups = is_planned ? SeqGroupsOf(p, kPlannedSeqs) : SeqRunsOf(p, false);
    for (const SeqGroup& group : groups) {
      AddSeqs(ops, SeqOfRows(ops, p.Nk, group.lengths.nk, causal), group.count, &of_problem);
    }
  }
  return seqs;
}

}  // namespace

MixedRows::MixedRows(Ops& ops, const Inputs& in)
    : ops_(ops), in_(in), split_(ops, in), has_lengths_(HasLengths(in.problems[0])) {}

bool MixedRows::IsSparse(bool causal) const { return causal || has_lengths_; }

Tensor MixedRows::Clean(const Tensor& x) const {
  if (!ops_.status().ok() || !has_lengths_) return x;
  // The memory order in which merging heads needs no copy.
  return ops_.JoinBatch(split_.Keys(x), ShapesOf(x), 0, DType::kF32,
                        std::vector<Layout>(x.size(), Layout::kBNHD));
}

Tensor MixedRows::Out(const Tensor& y) const {
  if (!ops_.status().ok()) return {};
  return split_.JoinOut(split_.Keys(y), y[0].shape[3]);
}

Tensor MixedRows::Mix(const Tensor& weight, const Tensor& x, bool causal, bool is_returned) const {
  if (!ops_.status().ok()) return {};
  if (!IsSparse(causal)) return ops_.MatMul(weight, x, {.is_returned = is_returned});
  // Attention whose scores are the weights: a bias and nothing else. It takes a weight of -inf for
  // 0 and clamps finite ones beyond 2.29e38.
  std::vector<Shape> shapes;
  for (size_t p = 0; p < x.size(); ++p) {
    const Shape& s = x[p].shape;
    shapes.push_back({s[0], s[1], s[2], 1});
  }
  const Tensor nothing = ops_.Copy(ops_.Constant(0, shapes));
  return ops_
      .Attend(nothing, nothing, x, {.weighting = Weighting::kIdentity}, SeqsOf(ops_, in_, causal),
              {.bias = weight})
      .out;
}

std::string MixBranch(const ProblemShape& problem, bool causal) {
  return causal || HasLengths(problem) ? absl::StrCat("H", problem.Hkv) : "";
}

Tensor MergeHeads(Ops& ops, const Tensor& x) {
  std::vector<Shape> shapes;
  for (size_t p = 0; p < x.size(); ++p) {
    const Shape& s = x[p].shape;
    shapes.push_back({s[0], 1, s[2], s[1] * s[3]});
  }
  return ops.Reshape(ops.Transpose(x, 1, 2), shapes);
}

Tensor SplitHeads(Ops& ops, const Tensor& x, int64_t D) {
  std::vector<Shape> shapes;
  for (size_t p = 0; p < x.size(); ++p) {
    const Shape& s = x[p].shape;
    shapes.push_back({s[0], s[2], s[3] / D, D});
  }
  return ops.Transpose(ops.Reshape(x, shapes), 1, 2);
}

Tensor FirstRows(Ops& ops, const Inputs& in, const Tensor& table, int axis) {
  if (!ops.status().ok()) return {};
  const int along = AxisOf(axis, table[0].shape.rank);
  std::vector<int64_t> rows;
  bool is_whole = true;
  for (size_t p = 0; p < table.size(); ++p) {
    rows.push_back(in.problems[p].Nk);
    is_whole = is_whole && table[p].shape[along] == rows.back();
  }
  return is_whole ? table : ops.Slice(table, along, {0}, rows);
}

void CountMixedPairs(Ops& ops, const Inputs& in, bool causal) {
  double pairs = 0;
  for (const ProblemShape& p : in.problems) {
    const auto of = [&](const SeqGroup& group) {
      const Lengths lengths{group.lengths.nk, group.lengths.nk};
      return BandPairs(lengths, kUnbounded, causal ? 0 : kUnbounded) *
             static_cast<double>(group.count * p.H);
    };
    for (const SeqGroup& group : SeqGroupsOf(p, static_cast<size_t>(p.B))) pairs += of(group);
  }
  ops.stream().work().visible_pairs = pairs;
  ops.EstimatePairs(false);
}

}  // namespace attnd
