#include "kernels/methods/sinkhorn/sort.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/method/drawn.h"
#include "kernels/methods/lowrank/rows.h"

namespace attnd {
namespace {

using Blocks = SinkhornBlocks;

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// Sorted blocks of a sequence.
int64_t SortedOf(const Blocks& b) { return b.groups * b.picks; }

// 1 where query block first + r comes after key block v, [1,1,rows,columns].
Tensor Past(const SinkhornRun& run) {
  const Tensor rows = run.Numbers(
      2, [](const Blocks& b) { return b.rows; },
      [](const Blocks& b, int64_t r) { return static_cast<double>(b.first + r); });
  const Tensor columns = run.Numbers(
      3, [](const Blocks& b) { return b.columns; },
      [](const Blocks&, int64_t v) { return static_cast<double>(v); });
  return run.ops.Apply(ElementOp::kGreater, rows, columns);
}

// x where `past` is not 0, else -inf.
Tensor Hidden(Ops& ops, const Tensor& past, const Tensor& x) {
  if (!ops.status().ok()) return {};
  return ops.Select(past, x, NumberLike(ops, kNothing, x));
}

// --- Sinkhorn's iterations

// Noise of the scores, [B,H,rows,columns].
Tensor Noise(const SinkhornRun& run) {
  Ops& ops = run.ops;
  std::vector<Shape> shapes;
  for (const ProblemShape& p : run.in.problems) shapes.push_back(DrawnNoise(p, run.o).shape);
  const DrawParams params = DrawnNoise(run.in.problems[0], run.o).params;
  const Tensor noise =
      ops.Stop(run.seqs.Whole(SentOrDrawn(ops, run.in, "gumbel_noise", params, shapes)));
  const Tensor rows = ops.Slice(noise, 2, run.Each([](const Blocks& b) { return b.first; }),
                                run.Each([](const Blocks& b) { return b.first + b.rows; }));
  return ops.Slice(rows, 3, {0}, run.Each([](const Blocks& b) { return b.columns; }));
}

// S of the scores R.
Tensor SinkhornWeights(const SinkhornRun& run, const Tensor& R) {
  Ops& ops = run.ops;
  if (!ops.status().ok()) return {};
  const Tensor positive = ops.Affine(ops.Apply(ElementOp::kRelu, R), 1, 1e-6);
  Tensor logs = ops.Apply(ElementOp::kLog, positive);
  if (run.o.gumbel) logs = ops.Apply(ElementOp::kAdd, logs, Noise(run));
  logs = ops.Affine(logs, 1 / run.o.Temperature());
  const Tensor past = run.o.causal ? Past(run) : Tensor();
  if (run.o.causal) logs = Hidden(ops, past, logs);
  for (int64_t i = 0; i < run.o.iters && ops.status().ok(); ++i) {
    logs = ops.LogSoftmax(logs, 3);
    if (run.o.causal) {
      // Over the rows up to each one: later blocks do not change earlier weights.
      const Tensor prefix = ops.Cumulative(CumulativeOp::kLogSumExp, logs, 2);
      logs = Hidden(ops, past, ops.Apply(ElementOp::kSubtract, logs, prefix));
    } else {
      logs = ops.LogSoftmax(logs, 2);
    }
  }
  return ops.Apply(ElementOp::kExp, logs);
}

// S by blocks, [B,H,n slots,D]. S [B,H,n,columns].
Tensor Mixed(const SinkhornRun& run, const Tensor& S, const Tensor& key_blocks) {
  Ops& ops = run.ops;
  if (!ops.status().ok()) return {};
  const Tensor mixed = run.Ungrouped(ops.MatMul(run.Grouped(S), key_blocks));
  if (!ops.status().ok()) return {};
  std::vector<Shape> shapes;
  for (size_t i = 0; i < mixed.size(); ++i) {
    const Shape& s = mixed[i].shape;
    const int64_t slots = run.blocks[i].slots;
    shapes.push_back({s[0], s[1], s[2] * slots, s[3] / slots});
  }
  return ops.Reshape(mixed, shapes);
}

// --- the best blocks

struct Picked {
  Tensor block;   // int32 [B,H,n,1]: of the blocks that WithNulls gives
  Tensor weight;  // [B,H,n,1]
};

// [B,H,rows,picks] -> [B,H,n,1].
Tensor Flat(const SinkhornRun& run, const Tensor& x) {
  if (!run.ops.status().ok()) return {};
  std::vector<Shape> shapes;
  for (size_t i = 0; i < x.size(); ++i) {
    shapes.push_back({x[i].shape[0], x[i].shape[1], SortedOf(run.blocks[i]), 1});
  }
  return run.ops.Reshape(x, shapes);
}
Tensor WithLastOne(const SinkhornRun& run, const Tensor& x) {
  if (!run.ops.status().ok()) return {};
  std::vector<Shape> shapes = ShapesOf(x);
  for (Shape& s : shapes) s = {s[0], s[1], s[2], s[3], 1};
  return run.ops.Reshape(x, shapes);
}

// The block of each column of scores, [1,1,1,nulls + columns,1]: 0 for null blocks.
Tensor BlocksOfColumns(const SinkhornRun& run) {
  const auto shape_of = [](const Blocks& b) { return Shape{1, 1, 1, b.nulls + b.columns, 1}; };
  return run.Listed<int32_t>(shape_of, [](const Blocks& b, int32_t* columns) {
    for (int64_t v = 0; v < b.columns; ++v) columns[b.nulls + v] = static_cast<int32_t>(v + 1);
  });
}

// Scores of the columns, null blocks before the others.
Tensor ScoresWithNulls(const SinkhornRun& run, const Tensor& R) {
  Ops& ops = run.ops;
  const Tensor scores = Hidden(ops, Past(run), ops.Affine(R, 1 / run.o.Temperature()));
  if (!ops.status().ok()) return {};
  std::vector<Shape> nulls;
  for (size_t i = 0; i < R.size(); ++i) {
    nulls.push_back({R[i].shape[0], R[i].shape[1], R[i].shape[2], run.blocks[i].nulls});
  }
  return ops.Concat({ops.Constant(0, nulls), scores}, 3);
}

// sum over the picks j >= i of e^(best_j - best_i), by doubling the terms; `best` falls along
// picks. Differences of scores are exact at any size, which a logarithm of a sum is not.
Tensor SumsOfPicks(const SinkhornRun& run, const Tensor& best) {
  Ops& ops = run.ops;
  const std::vector<int64_t> picks = run.Each([](const Blocks& b) { return b.picks; });
  const int64_t most = *std::max_element(picks.begin(), picks.end());
  Tensor sums = ops.Constant(1, ShapesOf(best));
  for (int64_t terms = 1; terms < most && ops.status().ok(); terms *= 2) {
    const auto begin = run.Each([&](const Blocks& b) { return std::min(terms, b.picks); });
    const auto left = run.Each([&](const Blocks& b) { return b.picks - std::min(terms, b.picks); });
    const auto here = [&](const Tensor& x) { return ops.Slice(x, 3, {0}, left); };
    const auto there = [&](const Tensor& x) { return ops.Slice(x, 3, begin, picks); };
    const Tensor fall =
        ops.Apply(ElementOp::kExp, ops.Apply(ElementOp::kSubtract, there(best), here(best)));
    const Tensor more = ops.Apply(ElementOp::kMultiply, fall, there(sums));
    sums = ops.Concat(
        {ops.Apply(ElementOp::kAdd, here(sums), more), ops.Slice(sums, 3, left, picks)}, 3);
  }
  return sums;
}

// Of each of the best scores, at columns `order`, its softmax over it and what is left after it.
Tensor WeightsOfPicks(const SinkhornRun& run, const Tensor& scores, const Tensor& order,
                      const Tensor& best) {
  Ops& ops = run.ops;
  if (!ops.status().ok()) return {};
  std::vector<int64_t> columns;
  std::vector<Shape> ones;
  for (size_t i = 0; i < scores.size(); ++i) {
    columns.push_back(scores[i].shape[3]);
    ones.push_back({1, 1, 1, run.blocks[i].picks, 1});
  }
  const auto falls = [&](const Tensor& x, const Tensor& from) {
    return ops.Apply(ElementOp::kExp, ops.Apply(ElementOp::kSubtract, x, from));
  };
  const Tensor is_picked =
      ops.Reshape(ops.Scatter(ops.Constant(1, ones), order, columns), ShapesOf(scores));
  const Tensor others = ops.Select(is_picked, NumberLike(ops, kNothing, scores), scores);
  // The least of the best scores: a constant, since it cancels.
  const Tensor last = ops.Affine(ops.Reduce(ReduceOp::kMax, ops.Affine(ops.Stop(best), -1), 3), -1);
  const Tensor rest = ops.Reduce(ReduceOp::kSum, falls(others, last), 3);
  const Tensor sums = ops.Apply(ElementOp::kAdd, SumsOfPicks(run, best),
                                ops.Apply(ElementOp::kMultiply, falls(last, best), rest));
  return ops.Apply(ElementOp::kReciprocal, sums);
}

// The largest scores one after the other, each with its softmax over those that are left.
Picked Picks(const SinkhornRun& run, const Tensor& R) {
  Ops& ops = run.ops;
  const Tensor scores = run.o.causal ? ScoresWithNulls(run, R) : R;
  if (!ops.status().ok()) return {};
  std::vector<int64_t> picks;
  std::vector<Shape> picked;
  for (size_t i = 0; i < scores.size(); ++i) {
    const Shape& s = scores[i].shape;
    picks.push_back(run.blocks[i].picks);
    picked.push_back({s[0], s[1], s[2], picks.back()});
  }
  const Tensor order = ops.TopK(scores, picks);
  const Tensor best = ops.Reshape(ops.Gather(WithLastOne(run, scores), order), picked);
  const Tensor weight = WeightsOfPicks(run, scores, order, best);
  Tensor block = order;
  if (run.o.causal) block = ops.Gather(BlocksOfColumns(run), order);
  return {Flat(run, block), Flat(run, weight)};
}

// Blocks of null_k or null_v [B,H,1,slots D], one, before the others; those of query heads.
Tensor WithNulls(const SinkhornRun& run, const Tensor& key_blocks, bool of_keys) {
  Ops& ops = run.ops;
  if (!ops.status().ok()) return {};
  std::vector<Shape> drawn, rows, repeated, flat;
  std::vector<int64_t> groups;
  for (const ProblemShape& p : run.in.problems) drawn.push_back(DrawnNull(p, run.o, of_keys).shape);
  const DrawParams params = DrawnNull(run.in.problems[0], run.o, of_keys).params;
  const Tensor null = run.seqs.Shared(SentOrDrawn(ops, run.in, params.name, params, drawn));
  if (!ops.status().ok()) return {};
  for (size_t i = 0; i < null.size(); ++i) {
    const int64_t B = key_blocks[i].shape[0], slots = run.blocks[i].slots;
    const int64_t H = null[i].shape[1], D = null[i].shape[2];
    rows.push_back({1, H, 1, D});
    repeated.push_back({B, H, slots, D});
    flat.push_back({B, H, 1, slots * D});
    groups.push_back(run.ProblemOf(i).H / run.ProblemOf(i).Hkv);
  }
  const Tensor block = ops.Reshape(ops.Expand(ops.Reshape(null, rows), repeated), flat);
  return ops.Concat({block, RepeatHeads(ops, key_blocks, groups)}, 2);
}

// The picked blocks times their weights, [B,H,n slots,D]. Blocks of key heads or of query heads.
Tensor Weighted(const SinkhornRun& run, const Picked& picked, const Tensor& blocks) {
  Ops& ops = run.ops;
  if (!ops.status().ok()) return {};
  std::vector<Shape> index, grouped, flat, whole;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Shape& s = blocks[i].shape;
    const int64_t H = run.ProblemOf(i).H;
    const int64_t n = SortedOf(run.blocks[i]), slots = run.blocks[i].slots;
    index.push_back({s[0], s[1], H / s[1], n});
    grouped.push_back({s[0], s[1], 1, s[2], s[3]});
    flat.push_back({s[0], H, n, s[3]});
    whole.push_back({s[0], H, n * slots, s[3] / slots});
  }
  const Tensor rows =
      ops.Reshape(ops.Gather(ops.Reshape(blocks, grouped), ops.Reshape(picked.block, index)), flat);
  return ops.Reshape(ops.Apply(ElementOp::kMultiply, rows, picked.weight), whole);
}

// --- what is added to the scores of queries

// Slots of a sorted block are visible as those of its main key block are: of the last one, which
// may be cut, its first rows. `block` [B,H,n,1].
Tensor BiasOf(const SinkhornRun& run, const Tensor& block) {
  Ops& ops = run.ops;
  if (!ops.status().ok()) return {};
  const auto one = [](const Blocks&) { return int64_t{1}; };
  // A null block stands before those of keys.
  const Tensor last = run.Numbers(3, one, [](const Blocks& b, int64_t) {
    return static_cast<double>(b.nulls > 0 ? b.nk : b.nk - 1);
  });
  const Tensor is_cut = run.Numbers(
      3, [](const Blocks& b) { return b.slots; },
      [](const Blocks& b, int64_t t) { return b.CutRows() > 0 && t >= b.CutRows() ? 1.0 : 0.0; });
  // One null stands for block_size of them.
  const Tensor times = run.Numbers(3, one, [&](const Blocks& b, int64_t) {
    return b.HasOneNull() ? std::log(static_cast<double>(run.o.block_size)) : 0.0;
  });
  const Tensor is_hidden =
      ops.Apply(ElementOp::kMultiply, ops.Apply(ElementOp::kEqual, block, last), is_cut);
  if (!ops.status().ok()) return {};
  const Tensor bias = ops.Select(is_hidden, NumberLike(ops, kNothing, is_hidden), times);
  if (!ops.status().ok()) return {};
  std::vector<Shape> shapes;
  for (size_t i = 0; i < bias.size(); ++i) {
    const Shape& s = bias[i].shape;
    shapes.push_back({s[0], s[1], 1, s[2] * s[3]});
  }
  return ops.Reshape(bias, shapes);
}

}  // namespace

SortedKeys Sorted(const SinkhornRun& run, const Tensor& q, const Tensor& k, const Tensor& v) {
  Ops& ops = run.ops;
  const Tensor of_k = KeyBlocks(run, k), of_v = KeyBlocks(run, v);
  const Tensor R = BlockScores(run, q, k, of_k);
  SortedKeys sorted;
  Tensor block;
  if (run.o.IsTopK()) {
    const Picked picked = Picks(run, R);
    const bool has_nulls = run.o.causal;
    sorted.k = Weighted(run, picked, has_nulls ? WithNulls(run, of_k, /*of_keys=*/true) : of_k);
    sorted.v = Weighted(run, picked, has_nulls ? WithNulls(run, of_v, /*of_keys=*/false) : of_v);
    block = picked.block;
  } else {
    const Tensor S = ops.Slice(SinkhornWeights(run, R), 2, {0}, run.Each(SortedOf));
    sorted.k = Mixed(run, S, of_k);
    sorted.v = Mixed(run, S, of_v);
    if (run.kinds.has_bias) block = ops.ArgMax(S);
  }
  if (run.kinds.has_bias) sorted.bias = BiasOf(run, block);
  return sorted;
}

}  // namespace attnd
