#include "kernels/method/seq_split.h"

#include <algorithm>
#include <limits>

#include "kernels/method/tensors.h"

namespace attnd {

SeqSplit::SeqSplit(Ops& ops, const Inputs& in, size_t most, QueryRows query_rows)
    : ops_(ops), in_(in) {
  is_split_ = std::any_of(in.problems.begin(), in.problems.end(), HasLengths);
  const bool is_planned = is_split_ && ops.stream().is_dry();
  for (size_t p = 0; p < in.problems.size(); ++p) {
    counts_.emplace_back();
    std::vector<SeqGroup> groups = SeqRunsOf(in.problems[p], is_planned, most);
    if (AreRounded(groups)) ops.EstimatePairs();
    for (SeqGroup& group : groups) {
      if (query_rows == QueryRows::kLikeKeys) {
        group.lengths = OfSameTokens(in.problems[p], group.lengths);
      }
      parts_.push_back({p, group.lengths, group.count, group.mem, group.cmem});
      counts_.back().push_back(group.count);
    }
  }
}

std::vector<std::vector<int64_t>> SeqSplit::RowsOf(const Tensor& x, int64_t Lengths::*rows) const {
  std::vector<std::vector<int64_t>> lengths(x.size());
  for (const Part& part : parts_) {
    const Shape& shape = x[part.problem].shape;
    const int64_t all = shape[shape.rank == 2 ? 1 : 2];
    lengths[part.problem].push_back(rows == nullptr ? all : part.lengths.*rows);
  }
  return lengths;
}

Tensor SeqSplit::Queries(const Tensor& x) const {
  if (!is_split_ || x.empty()) return x;
  return ops_.SplitBatch(x, RowsOf(x, &Lengths::nq), counts_);
}

Tensor SeqSplit::Keys(const Tensor& x) const {
  if (!is_split_ || x.empty()) return x;
  return ops_.SplitBatch(x, RowsOf(x, &Lengths::nk), counts_);
}

Tensor SeqSplit::Whole(const Tensor& x) const {
  if (!is_split_ || x.empty()) return x;
  return ops_.SplitBatch(x, RowsOf(x, nullptr), counts_);
}

Tensor SeqSplit::Memory(const Tensor& x, int64_t Part::*rows) const {
  if (!is_split_ || x.empty()) return x;
  const Tensor whole = Whole(x);
  if (!ops_.status().ok()) return {};
  constexpr int kRows = 2;
  std::vector<int64_t> begin, end;
  for (size_t i = 0; i < parts_.size(); ++i) {
    end.push_back(whole[i].shape[kRows]);
    begin.push_back(end.back() - parts_[i].*rows);
  }
  return ops_.Slice(whole, kRows, begin, end);
}

Tensor SeqSplit::Shared(const Tensor& x) const {
  if (x.empty()) return x;
  const Tensor whole = WithRank(ops_, x, x[0].shape.rank + 1);
  if (!is_split_ || !ops_.status().ok()) return whole;
  // Where each problem is one part, a plan has the same parts as a run.
  const bool is_planned = ops_.stream().is_dry() && parts_.size() > counts_.size();
  RowCuts cuts;
  for (const std::vector<int64_t>& counts : counts_) {
    cuts.push_back({0});
    for (const int64_t count : counts)
      cuts.back().push_back(cuts.back().back() + (is_planned ? count : 1));
  }
  const Tensor parts = ops_.SplitRows(whole, 0, cuts, is_planned ? counts_ : SeqCounts());
  // What stands for `count` sequences has count rows: one of them, as a run has.
  return is_planned ? ops_.Slice(parts, 0, {0}, {1}) : parts;
}

Tensor SeqSplit::Join(const Tensor& x, const std::vector<Shape>& shapes, float fill) const {
  if (!is_split_ || x.empty()) return x;
  return ops_.JoinBatch(x, shapes, fill);
}

Tensor SeqSplit::JoinOut(const Tensor& x, int64_t last) const {
  if (!ops_.status().ok()) return {};
  const DType dtype = in_.v[0].dtype;
  const std::vector<Layout> layouts = LayoutsOf(in_.v);
  if (!is_split_) return AsOutput(ops_, x, dtype, layouts);
  std::vector<Shape> shapes;
  for (const ProblemShape& p : in_.problems) shapes.push_back({p.B, p.H, p.Nq, last});
  return ops_.JoinBatch(x, shapes, 0, dtype, layouts);
}

Tensor SeqSplit::JoinLse(const Tensor& x) const {
  std::vector<Shape> shapes;
  for (const ProblemShape& p : in_.problems) shapes.push_back({p.B, p.H, p.Nq});
  return Join(x, shapes, -std::numeric_limits<float>::infinity());
}

void AddSeqs(Ops& ops, AttendSeq seq, int64_t count, std::vector<AttendSeq>* seqs) {
  if (!ops.stream().is_dry()) {
    seqs->insert(seqs->end(), static_cast<size_t>(count), seq);
    return;
  }
  // A list takes up to three times its size while it grows.
  ops.stream().work().host_bytes += 3 * count * static_cast<int64_t>(sizeof(AttendSeq));
  seq.count = count;
  seqs->push_back(std::move(seq));
}

}  // namespace attnd
