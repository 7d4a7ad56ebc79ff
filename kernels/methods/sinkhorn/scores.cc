#include "kernels/methods/sinkhorn/scores.h"

#include <algorithm>
#include <cmath>

#include "kernels/method/drawn.h"
#include "kernels/methods/lowrank/rows.h"

namespace attnd {
namespace {

using Blocks = SinkhornBlocks;

constexpr int kRows = 2;  // the axis of rows

std::vector<RowSegments> QueryWindows(const SinkhornRun& run) {
  const bool is_whole = run.o.sortcut > 0 && run.o.IsTopK();
  std::vector<RowSegments> windows;
  for (const Blocks& b : run.blocks) {
    windows.push_back(WindowsOf(b.lengths.nq, is_whole ? b.group : b.bq));
  }
  return windows;
}
std::vector<RowSegments> KeyWindows(const SinkhornRun& run) {
  std::vector<RowSegments> windows;
  for (const Blocks& b : run.blocks) windows.push_back(WindowsOf(b.lengths.nk, b.bk));
  return windows;
}

Tensor ScoredRows(const SinkhornRun& run, const Tensor& x) {
  return run.ops.Slice(x, kRows, run.Each([](const Blocks& b) { return b.first; }),
                       run.Each([](const Blocks& b) { return b.first + b.rows; }));
}
Tensor ScoredColumns(const SinkhornRun& run, const Tensor& x) {
  return run.ops.Slice(x, kRows, {0}, run.Each([](const Blocks& b) { return b.columns; }));
}

// The mean of all queries up to the first one of each block, [B,H,nq,D].
Tensor RunningQueries(const SinkhornRun& run, const Tensor& q) {
  Ops& ops = run.ops;
  const Tensor sums = ReduceRows(ops, ReduceOp::kSum, q, QueryWindows(run));
  const Tensor before = ops.Cumulative(CumulativeOp::kSum, sums, kRows, /*exclusive=*/true);
  const Tensor firsts = ops.Slice(
      q, kRows, {0}, run.Each([](const Blocks& b) { return b.lengths.nq; }), run.o.block_size);
  const Tensor sum = ops.Apply(ElementOp::kAdd, before, firsts);
  const Tensor share = run.Numbers(
      kRows, [](const Blocks& b) { return b.nq; },
      [](const Blocks& b, int64_t u) { return 1.0 / static_cast<double>(u * b.bq + 1); });
  return ops.Apply(ElementOp::kMultiply, sum, share);
}

// [1,1,columns,2,bk]: ones, and what key s of a block adds to the running means of its block,
// sum_t 1 / (t + 1) over its positions t >= s.
Tensor KeyWeights(const SinkhornRun& run) {
  const auto shape_of = [](const Blocks& b) { return Shape{1, 1, b.columns, 2, b.slots}; };
  return run.Listed<float>(shape_of, [](const Blocks& b, float* weights) {
    for (int64_t v = 0; v < b.columns; ++v) {
      float* const ones = weights + v * 2 * b.bk;
      double sum = 0;
      for (int64_t s = b.bk - 1; s >= 0; --s) {
        const int64_t position = v * b.bk + s;
        if (position < b.lengths.nk) sum += 1.0 / static_cast<double>(position + 1);
        ones[s] = 1;
        ones[b.bk + s] = static_cast<float>(sum);
      }
    }
  });
}

// The sum over each block of the means of all keys up to each of its keys, [B,Hkv,columns,D].
Tensor RunningKeys(const SinkhornRun& run, const Tensor& key_blocks) {
  Ops& ops = run.ops;
  if (!ops.status().ok()) return {};
  std::vector<Shape> apart, of_block;
  for (size_t i = 0; i < key_blocks.size(); ++i) {
    const Shape& s = key_blocks[i].shape;
    const int64_t D = run.in.problems[0].D;
    apart.push_back({s[0], s[1], s[2], run.blocks[i].slots, D});
    of_block.push_back({s[0], s[1], s[2], D});
  }
  const Tensor sums = ops.MatMul(KeyWeights(run), ops.Reshape(key_blocks, apart));
  const auto row = [&](int64_t r) {
    return ops.Reshape(ops.Slice(sums, 3, {r}, {r + 1}), of_block);
  };
  const Tensor before = ops.Cumulative(CumulativeOp::kSum, row(0), kRows, /*exclusive=*/true);
  const Tensor weight = run.Numbers(
      kRows, [](const Blocks& b) { return b.columns; },
      [](const Blocks& b, int64_t v) {
        double sum = 0;
        for (int64_t t = v * b.bk; t < std::min((v + 1) * b.bk, b.lengths.nk); ++t) {
          sum += 1.0 / static_cast<double>(t + 1);
        }
        return sum;
      });
  return ops.Apply(ElementOp::kAdd, row(1), ops.Apply(ElementOp::kMultiply, before, weight));
}

// [sums of q ; sums of k] by sort_w.
Tensor LinearScores(const SinkhornRun& run, const Tensor& q, const Tensor& k) {
  Ops& ops = run.ops;
  std::vector<Shape> shapes, missing;
  std::vector<int64_t> groups, rows;
  for (const ProblemShape& p : run.in.problems) shapes.push_back(DrawnWeight(p, run.o).shape);
  const Tensor weight = run.seqs.Shared(
      SentOrDrawn(ops, run.in, "sort_w", DrawnWeight(run.in.problems[0], run.o).params, shapes));
  const Tensor sums_q = ReduceRows(ops, ReduceOp::kSum, q, QueryWindows(run));
  const Tensor sums_k = ReduceRows(ops, ReduceOp::kSum, k, KeyWindows(run));
  if (!ops.status().ok()) return {};
  // A block of queries beyond the last one of keys has none.
  for (size_t i = 0; i < sums_k.size(); ++i) {
    const Blocks& b = run.blocks[i];
    const ProblemShape& p = run.ProblemOf(i);
    groups.push_back(p.H / p.Hkv);
    rows.push_back(std::min(b.nq, b.nk));
    missing.push_back({sums_k[i].shape[0], p.Hkv, b.nq - rows.back(), p.D});
  }
  const Tensor beside =
      ops.Concat({ops.Slice(sums_k, kRows, {0}, rows), ops.Constant(0, missing)}, kRows);
  const Tensor features = ops.Concat({sums_q, RepeatHeads(ops, beside, groups)}, 3);
  const Tensor columns =
      ops.Slice(weight, 3, {0}, run.Each([](const Blocks& b) { return b.columns; }));
  return ops.MatMul(ScoredRows(run, features), columns);
}

}  // namespace

Tensor SinkhornRun::Grouped(const Tensor& x) const {
  if (!ops.status().ok()) return {};
  std::vector<Shape> shapes;
  for (size_t i = 0; i < x.size(); ++i) {
    const ProblemShape& p = ProblemOf(i);
    const Shape& s = x[i].shape;
    shapes.push_back({s[0], p.Hkv, p.H / p.Hkv * s[2], s[3]});
  }
  return ops.Reshape(x, shapes);
}

Tensor SinkhornRun::Ungrouped(const Tensor& x) const {
  if (!ops.status().ok()) return {};
  std::vector<Shape> shapes;
  for (size_t i = 0; i < x.size(); ++i) {
    const ProblemShape& p = ProblemOf(i);
    const Shape& s = x[i].shape;
    shapes.push_back({s[0], p.H, s[2] / (p.H / p.Hkv), s[3]});
  }
  return ops.Reshape(x, shapes);
}

Tensor KeyBlocks(const SinkhornRun& run, const Tensor& x) {
  Ops& ops = run.ops;
  if (!ops.status().ok()) return {};
  std::vector<int64_t> rows;
  std::vector<Shape> missing, blocks;
  for (size_t i = 0; i < x.size(); ++i) {
    const Blocks& b = run.blocks[i];
    const Shape& s = x[i].shape;
    rows.push_back(std::min(b.columns * b.bk, b.lengths.nk));
    missing.push_back({s[0], s[1], b.columns * b.bk - rows.back(), s[3]});
    blocks.push_back({s[0], s[1], b.columns, b.slots * s[3]});
  }
  Tensor keys = ops.Slice(x, kRows, {0}, rows);
  if (run.kinds.has_bias) keys = ops.Concat({keys, ops.Constant(0, missing)}, kRows);
  return ops.Reshape(keys, blocks);
}

Tensor BlockScores(const SinkhornRun& run, const Tensor& q, const Tensor& k,
                   const Tensor& key_blocks) {
  Ops& ops = run.ops;
  if (!ops.status().ok()) return {};
  if (run.o.sort_net == SortNet::kLinear) return LinearScores(run, q, k);
  Tensor of_q, of_k;
  if (run.o.causal) {
    of_q = RunningQueries(run, q);
    of_k = RunningKeys(run, key_blocks);
  } else {
    of_q = ReduceRows(ops, ReduceOp::kMean, q, QueryWindows(run));
    of_k = ScoredColumns(run, ReduceRows(ops, ReduceOp::kMean, k, KeyWindows(run)));
  }
  if (!ops.status().ok()) return {};
  const double scale = 1 / std::sqrt(static_cast<double>(run.in.problems[0].D));
  return run.Ungrouped(
      ops.MatMul(run.Grouped(ScoredRows(run, of_q)), ops.Transpose(of_k, 2, 3), {.alpha = scale}));
}

}  // namespace attnd
