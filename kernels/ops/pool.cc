// Ops::Pool and its gradient rules, and lists of ranges.
#include "kernels/ops/pool.h"

#include <algorithm>

#include "kernels/ops/composed.h"

namespace attnd {
namespace {

using RangeLists = std::vector<std::vector<RowRange>>;

// Ranges inside [0, rows) whose ends never decrease.
bool Fits(const std::vector<RowRange>& ranges, int64_t rows) {
  RowRange last;
  for (const RowRange& range : ranges) {
    const bool rises = last.begin <= range.begin && last.end <= range.end;
    if (!rises || range.begin > range.end || range.end > rows) return false;
    last = range;
  }
  return true;
}

// 1 / rows of every range, [.., M, 1].
Tensor InverseSizes(Ops& ops, const Tensor& like, const RangeLists& ranges) {
  std::vector<Shape> shapes = ShapesOf(like);
  std::vector<std::vector<float>> values;
  for (size_t p = 0; p < like.size(); ++p) {
    shapes[p].dims.fill(1);
    shapes[p].dims[shapes[p].rank - 2] = static_cast<int64_t>(ranges[p].size());
    std::vector<float>& list = values.emplace_back();
    for (const RowRange& range : ranges[p]) {
      list.push_back(1.0f / static_cast<float>(std::max<int64_t>(range.end - range.begin, 1)));
    }
  }
  return ops.FromHost(shapes, values);
}

// Not recorded. `arg` is written by kMax, read by kSumWhere, else empty.
Tensor Computed(Ops& ops, PoolOp op, const Tensor& x, const Tensor& arg, const RangeLists& ranges) {
  std::vector<Shape> shapes = ShapesOf(x);
  for (size_t p = 0; p < x.size(); ++p) {
    shapes[p].dims[shapes[p].rank - 2] = static_cast<int64_t>(ranges[p].size());
  }
  const Tensor out = ops.Empty(DType::kF32, shapes);
  if (!ops.status().ok()) return {};
  std::vector<PoolProblem> problems;
  for (size_t p = 0; p < x.size(); ++p) {
    problems.push_back({x[p], out[p], ViewOf(arg, p), ranges[p]});
  }
  if (!ops.TryRun(PoolArgs{.op = op, .problems = std::move(problems)})) {
    const bool is_mean = op == PoolOp::kMean;
    ComposePool(ops, is_mean ? PoolOp::kSum : op, x, arg, ranges, out);
    if (is_mean) ApplyInto(ops, ElementOp::kMultiply, out, out, InverseSizes(ops, out, ranges));
  }
  return ops.status().ok() ? out : Tensor();
}

}  // namespace

Tensor Ops::Pool(PoolOp op, const Tensor& x, const RangeLists& ranges) {
  bool fits = !x.empty() && ranges.size() == x.size() && op != PoolOp::kSumWhere;
  for (size_t p = 0; fits && p < x.size(); ++p) {
    const Shape& shape = x[p].shape;
    fits = IsFloat(x[p].dtype) && shape.rank >= 2 && Fits(ranges[p], shape[shape.rank - 2]);
  }
  if (!Require(fits, "pool", "ranges must rise and lie inside the rows of a float tensor")) {
    return {};
  }
  const bool records = Records({&x});
  Tensor arg;
  if (op == PoolOp::kMax && records) {
    std::vector<Shape> shapes = ShapesOf(x);
    for (size_t p = 0; p < x.size(); ++p) {
      shapes[p].dims[shapes[p].rank - 2] = static_cast<int64_t>(ranges[p].size());
    }
    arg = Empty(DType::kI32, shapes);
    if (!status_.ok()) return {};
  }
  const Tensor out = Computed(*this, op, x, arg, ranges);
  if (!status_.ok() || !records) return out;
  RangeLists readers;
  for (size_t p = 0; p < x.size(); ++p) {
    readers.push_back(TransposeRanges(ranges[p], x[p].shape[x[p].shape.rank - 2]));
  }
  tape_->Record({x}, {out},
                [op, arg, ranges, readers](Ops& ops, std::span<const Tensor> grads,
                                           const std::vector<bool>&) -> std::vector<Tensor> {
                  if (op == PoolOp::kMax) {
                    return {Computed(ops, PoolOp::kSumWhere, grads[0], arg, readers)};
                  }
                  Tensor each = grads[0];
                  if (op == PoolOp::kMean) {
                    each = ops.Apply(ElementOp::kMultiply, each, InverseSizes(ops, each, ranges));
                  }
                  return {ops.Pool(PoolOp::kSum, each, readers)};
                });
  return out;
}

std::vector<RowRange> TransposeRanges(std::span<const RowRange> ranges, int64_t rows) {
  const auto count = static_cast<int64_t>(ranges.size());
  std::vector<RowRange> readers;
  int64_t begin = 0, end = 0;
  for (int64_t n = 0; n < rows; ++n) {
    // Ranges that end by n are over, ranges that begin by n have begun.
    while (begin < count && ranges[begin].end <= n) ++begin;
    while (end < count && ranges[end].begin <= n) ++end;
    readers.push_back({begin, std::max(begin, end)});
  }
  return readers;
}

std::vector<RowRange> Windows(int64_t n, int64_t width) {
  std::vector<RowRange> ranges;
  for (int64_t begin = 0; begin < n; begin += width) {
    ranges.push_back({begin, std::min(begin + width, n)});
  }
  return ranges;
}

std::vector<RowRange> Segments(int64_t n, int64_t m) {
  std::vector<RowRange> ranges;
  const int64_t size = n / m, long_ones = n % m;
  int64_t begin = 0;
  for (int64_t i = 0; i < m; ++i) {
    const int64_t end = begin + size + (i >= m - long_ones ? 1 : 0);
    ranges.push_back({begin, end});
    begin = end;
  }
  return ranges;
}

}  // namespace attnd
