#include "kernels/methods/lowrank/rows.h"

#include <algorithm>

#include "kernels/core/integer.h"
#include "kernels/method/seq_split.h"
#include "kernels/ops/ops.h"
#include "kernels/pattern/shapes/windows.h"

namespace attnd {

RowSegments WindowsOf(int64_t n, int64_t width) {
  const int64_t tail = n % width;
  return {.count = n / width, .width = width, .rest = tail > 0 ? 1 : 0, .rest_width = tail};
}

RowSegments LandmarksOf(int64_t n, int64_t m) {
  if (n == 0) return {};
  const int64_t size = n / m, longer = n % m;
  return {.count = m - longer, .width = size, .rest = longer, .rest_width = size + 1};
}

Tensor ReduceRows(Ops& ops, ReduceOp op, const Tensor& x,
                  const std::vector<RowSegments>& segments) {
  constexpr int kRows = 2, kWidth = 3;
  RowCuts rows, columns;
  for (const RowSegments& s : segments) {
    rows.push_back({0, s.count * s.width, s.rows()});
    columns.push_back({0, s.count, s.segments()});
  }
  // Two problems for each: segments of one width each.
  const Tensor halves = ops.SplitRows(x, kRows, rows);
  if (!ops.status().ok()) return {};
  std::vector<Shape> split, reduced, joined;
  for (size_t i = 0; i < halves.size(); ++i) {
    const RowSegments& s = segments[i / 2];
    const Shape& shape = halves[i].shape;
    const int64_t count = i % 2 == 0 ? s.count : s.rest;
    const int64_t width = i % 2 == 0 ? s.width : s.rest_width;
    split.push_back({shape[0], shape[1], count, width, shape[3]});
    reduced.push_back({shape[0], shape[1], count, shape[3]});
    if (i % 2 == 0) joined.push_back({shape[0], shape[1], s.segments(), shape[3]});
  }
  const Tensor sums = ops.Reduce(op, ops.Reshape(halves, split), kWidth);
  if (!ops.status().ok()) return {};
  return ops.JoinRows(ops.Reshape(sums, reduced), kRows, joined, columns);
}

namespace {

bool Repeats(const std::vector<int64_t>& groups) {
  return std::any_of(groups.begin(), groups.end(), [](int64_t group) { return group > 1; });
}

// [B,Hkv,groups,N,D] by strides of 0, and the shapes with one axis of heads.
struct RepeatedHeads {
  Tensor expanded;
  std::vector<Shape> whole;
};
RepeatedHeads ExpandedHeads(Ops& ops, const Tensor& x, const std::vector<int64_t>& groups) {
  std::vector<Shape> apart, repeated, whole;
  for (size_t p = 0; p < x.size(); ++p) {
    const Shape& s = x[p].shape;
    apart.push_back({s[0], s[1], 1, s[2], s[3]});
    repeated.push_back({s[0], s[1], groups[p], s[2], s[3]});
    whole.push_back({s[0], s[1] * groups[p], s[2], s[3]});
  }
  return {ops.Expand(ops.Reshape(x, apart), repeated), whole};
}

}  // namespace

Tensor RepeatHeads(Ops& ops, const Tensor& x, const std::vector<int64_t>& groups) {
  if (!ops.status().ok()) return {};
  if (!Repeats(groups)) return x;
  const RepeatedHeads heads = ExpandedHeads(ops, x, groups);
  return ops.Reshape(heads.expanded, heads.whole);
}

Tensor RepeatHeadsDense(Ops& ops, const Tensor& x, const std::vector<int64_t>& groups) {
  if (!ops.status().ok()) return {};
  if (!Repeats(groups)) return x[0].dtype == DType::kF32 ? x : ops.Copy(x);
  const RepeatedHeads heads = ExpandedHeads(ops, x, groups);
  return ops.Reshape(ops.Copy(heads.expanded), heads.whole);
}

AttendSeqs AllPairs(Ops& ops, const Tensor& q, const std::vector<int64_t>& keys) {
  if (!ops.status().ok()) return {};
  AttendSeqs seqs;
  for (size_t p = 0; p < q.size(); ++p) {
    const Shape& shape = q[p].shape;
    const AttendSeq seq =
        ops.Seq(shape[2], keys[p], BandSource(shape[2], keys[p], kUnbounded, kUnbounded));
    AddSeqs(ops, seq, shape[0], &seqs.emplace_back());
  }
  return seqs;
}

}  // namespace attnd
