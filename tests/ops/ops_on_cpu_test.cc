// Every primitive of Ops and its gradient rule on the CPU device: a table of formulas.
#include "kernels/ops/feature_map.h"
#include "tests/ops/ops_on_cpu_case.h"

namespace attnd::testing {
namespace {

Cases Elementwise() {
  Cases cases;
  for (int i = 0; i < static_cast<int>(ElementOp::kAdd); ++i) {
    const auto op = static_cast<ElementOp>(i);
    // Within (0.5, 3.5), where all are defined and smooth; Maximum below has values around 0.
    cases.push_back({Numbered("Unary", {i}), {Rows}, [op](Ops& ops, In in) {
                       const Tensor x = ops.Affine(in[0], 1.5, 2);
                       return Out{op == ElementOp::kAffine ? x : ops.Apply(op, x)};
                     }});
  }
  const ShapeOf others[] = {Rows, Fixed({1, 2, 1, 1}), [](int64_t n) { return Shape{1, 1, n, 1}; }};
  for (ElementOp op :
       {ElementOp::kAdd, ElementOp::kSubtract, ElementOp::kMultiply, ElementOp::kDivide,
        ElementOp::kSafeDivide, ElementOp::kMaximum, ElementOp::kMinimum, ElementOp::kLogAddExp}) {
    const bool divides = op == ElementOp::kDivide || op == ElementOp::kSafeDivide;
    for (int i = 0; i < 3; ++i) {
      cases.push_back({Numbered("Binary", {static_cast<int>(op), i}),
                       {Rows, others[i]},
                       [op, divides](Ops& ops, In in) {
                         const Tensor b = divides ? ops.Affine(in[1], 1, 3) : in[1];
                         return Out{ops.Apply(op, in[0], b)};
                       }});
    }
  }
  cases.push_back({"Select", {Rows, Rows, Fixed({2, 1, 1, 9})}, [](Ops& ops, In in) {
                     const Tensor mask =
                         ops.Apply(ElementOp::kGreater, in[0], NumberLike(ops, 0, in[0]));
                     return Out{ops.Select(ops.Stop(mask), in[1], in[2]), ops.Add(in[0], in[1])};
                   }});
  return cases;
}

Cases AlongAnAxis() {
  Cases cases;
  for (int axis : {0, 2, 3}) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMax, ReduceOp::kLogSumExp}) {
      cases.push_back({Numbered("Reduce", {static_cast<int>(op), axis}),
                       {Rows},
                       [=](Ops& ops, In in) { return Out{ops.Reduce(op, in[0], axis)}; }});
    }
    cases.push_back({Numbered("Softmax", {axis}), {Rows}, [=](Ops& ops, In in) {
                       return Out{ops.Softmax(in[0], axis), ops.LogSoftmax(in[0], axis)};
                     }});
  }
  for (CumulativeOp op : {CumulativeOp::kSum, CumulativeOp::kMax, CumulativeOp::kLogSumExp}) {
    for (int way = 0; way < 4; ++way) {
      cases.push_back(
          {Numbered("Cumulative", {static_cast<int>(op), way}), {Rows}, [=](Ops& ops, In in) {
             const int axis = way % 2 == 0 ? 2 : 3;
             return Out{ops.Cumulative(op, in[0], axis, way / 2 != 0, way % 2 != 0)};
           }});
    }
  }
  cases.push_back({"LayerNorm",
                   {Rows, Fixed({1, 1, 1, 9}), Fixed({1, 2, 1, 9})},
                   [](Ops& ops, In in) { return Out{ops.LayerNorm(in[0], 0.1, in[1], in[2])}; }});
  cases.push_back({"LayerNormOfLongRows",
                   {[](int64_t n) {
                     return Shape{2, n};
                   }},
                   [](Ops& ops, In in) { return Out{ops.LayerNorm(in[0], 0.1)}; }});
  for (PoolOp op : {PoolOp::kSum, PoolOp::kMean, PoolOp::kMax}) {
    cases.push_back(
        {Numbered("PoolOfWindows", {static_cast<int>(op)}), {Rows}, [=](Ops& ops, In in) {
           const auto windows = [](int64_t n) { return Windows(n, 7); };
           return Out{ops.Pool(op, in[0], ForEachSize(in[0], windows))};
         }});
    cases.push_back(
        {Numbered("PoolOfOverlaps", {static_cast<int>(op)}), {Rows}, [=](Ops& ops, In in) {
           const auto overlaps = [](int64_t n) {
             std::vector<RowRange> ranges;
             for (int64_t i = 0; i < n; i += 3) ranges.push_back({i, std::min(n, i + 8)});
             ranges.push_back({n, n});
             return ranges;
           };
           return Out{ops.Pool(op, in[0], ForEachSize(in[0], overlaps))};
         }});
  }
  for (const RowNorm norm : {RowNorm::kNone, RowNorm::kSum, RowNorm::kL2}) {
    for (const int nu : {0, 1, 3}) {
      const FeatureRows features = {.map = ElementOp::kSilu, .nu = nu, .norm = norm, .eps = 1e-2};
      // Silu of positive numbers: no sum is near 0.
      cases.push_back(
          {Numbered("FeatureRows", {static_cast<int>(norm), nu}), {Rows}, [=](Ops& ops, In in) {
             const Tensor x = ops.Affine(in[0], 1, nu > 0 ? 0 : 2);
             return Out{FeaturesOf(ops, x, features)};
           }});
    }
  }
  cases.push_back({"FeatureRowsOfLongRows",
                   {[](int64_t n) {
                     return Shape{2, 11 * n};
                   }},
                   [](Ops& ops, In in) {
                     return Out{FeaturesOf(ops, in[0], {.nu = 2, .norm = RowNorm::kSum}),
                                FeaturesOf(ops, in[0], {.norm = RowNorm::kL2, .offset = 0.5})};
                   }});
  cases.push_back(NormsOfFarRows());
  return cases;
}

Cases Products() {
  Cases cases;
  cases.push_back(
      {"MatMulOfRows", {Rows, Fixed({1, 2, 9, 7}), Fixed({1, 1, 1, 7})}, [](Ops& ops, In in) {
         return Out{
             ops.MatMul(in[0], in[1], {.alpha = 0.5, .activation = ElementOp::kGelu}, in[2])};
       }});
  cases.push_back(
      {"MatMulOverRows",
       {[](int64_t n) {
          return Shape{2, 1, 5, n};
        },
        [](int64_t n) {
          return Shape{1, 3, n, 6};
        },
        Fixed({1, 1, 5, 1}), Fixed({2, 3, 5, 6})},
       [](Ops& ops, In in) { return Out{ops.MatMul(in[0], in[1], {}, in[2], in[3])}; }});
  cases.push_back({"MatMulTransposed",
                   {Fixed({4, 5, 6}),
                    [](int64_t n) {
                      return Shape{4, n, 6};
                    },
                    [](int64_t n) {
                      return Shape{4, 1, n};
                    }},
                   [](Ops& ops, In in) {
                     return Out{ops.MatMul(in[0], ops.Transpose(in[1], 1, 2),
                                           {.activation = ElementOp::kSilu}, in[2])};
                   }});
  cases.push_back(
      {"Conv1d", {Rows, Fixed({1, 2, 4, 9, 3}), Fixed({2, 1, 4})}, [](Ops& ops, In in) {
         const auto half = [](int64_t n) { return (n + 1) / 2; };
         return Out{ops.Conv1d(in[0], in[1], in[2],
                               {.stride = 2, .dilation = 2, .columns = ForEachSize(in[0], half)})};
       }});
  // Windows side by side, the last one cut.
  cases.push_back({"Conv1dOfWindows", {Rows, Fixed({1, 2, 4, 9, 3})}, [](Ops& ops, In in) {
                     const auto windows = [](int64_t n) { return (n + 2) / 3; };
                     return Out{ops.Conv1d(in[0], in[1], {},
                                           {.stride = 3, .columns = ForEachSize(in[0], windows)})};
                   }});
  cases.push_back({"Conv1dInside", {Rows, Fixed({1, 1, 4, 9, 3})}, [](Ops& ops, In in) {
                     return Out{ops.Conv1d(in[0], in[1], {}, {})};
                   }});
  for (int left : {0, 2, 40}) {
    cases.push_back(
        {Numbered("DepthwiseConv1d", {left}),
         {Rows, Fixed({left == 2 ? 1 : 2, 33})},
         [=](Ops& ops, In in) { return Out{ops.DepthwiseConv1d(in[0], in[1], left)}; }});
  }
  cases.push_back({"RealFft2", {Rows}, [](Ops& ops, In in) { return Out{ops.RealFft2(in[0])}; }});
  return cases;
}

// Blocks of keys without a decay, whose gradient is wanted or not.
Cases Scans() {
  const auto column = [](int64_t n) { return Shape{2, 2, n, 1}; };
  return {{"ScanThatSeldomDecays", {Rows, Rows, Rows, column}, [=](Ops& ops, In in) {
             const auto falls = [](int64_t n) {
               std::vector<float> list(static_cast<size_t>(n));
               for (int64_t i = 40; i < n; i += 70) list[i] = -0.7f;
               return list;
             };
             std::vector<Shape> shapes;
             for (const Shape& s : ShapesOf(in[3])) shapes.push_back({1, 1, s[2], 1});
             const Tensor fall = ops.FromHost(shapes, ForEachSize(in[3], falls));
             const Tensor zero = ops.Apply(ElementOp::kSubtract, in[3], ops.Stop(in[3]));
             ScanSeqs seqs;
             for (const Shape& s : ShapesOf(in[0])) {
               seqs.push_back({2, ScanSeq{.nq = s[2], .nk = s[2]}});
             }
             const ScanParams params = {
                 .map = FeatureMap::kIdentity, .causal = true, .den = ScanDen::kOne};
             const Tensor decay = ops.Apply(ElementOp::kAdd, zero, fall);
             return Out{ops.Scan(in[0], in[1], in[2], params, seqs, {.log_decay = decay}).out,
                        ops.Scan(in[0], in[1], in[2], params, seqs, {.log_decay = fall}).out};
           }}};
}

// With directions that are a constant, and with a gradient of them.
Cases RandomFeaturesOfRows() {
  Cases cases;
  for (int kind = 0; kind < 5; ++kind) {
    const auto feature = static_cast<RandomFeature>(kind);
    for (int i = 0; i < (HasShift(feature) ? 4 : 2); ++i) {
      // A head's own directions or those of all; fewer and more than a panel.
      const Shape w = i % 2 == 0 ? Shape{1, 2, 20, 9} : Shape{1, 1, 64, 9};
      const RandomFeaturesParams params = {.feature = feature,
                                           .alpha = 0.7,
                                           .factor = 0.4,
                                           .eps = HasWaves(feature) || i % 2 == 1 ? 0 : 0.05,
                                           .shares_shift = i >= 2,
                                           .map = ElementOp::kTanh};
      cases.push_back(
          {Numbered("RandomFeatures", {kind, i}), {Rows, Fixed(w)}, [=](Ops& ops, In in) {
             const auto fixed = ops.RandomFeatures(in[0], ops.Stop(in[1]), params);
             const auto learned = ops.RandomFeatures(in[0], in[1], params);
             Out out = {fixed.phi, learned.phi};
             if (HasShift(params.feature)) out.push_back(fixed.shift);
             return out;
           }});
    }
  }
  // Sums of more than a step, of x and of directions.
  cases.push_back(
      {"RandomFeaturesOfLongRows",
       {[](int64_t n) {
          return Shape{1, 2, n, 130};
        },
        Fixed({1, 1, 131, 130})},
       [](Ops& ops, In in) {
         const Tensor x = ops.Transpose(ops.Copy(ops.Transpose(in[0], 2, 3)), 2, 3);
         const RandomFeaturesParams params = {.alpha = 0.1, .factor = 0.1};
         return Out{ops.RandomFeatures(x, ops.Stop(in[1]), params).phi, ops.Affine(in[1], 1)};
       },
       {0, 1, 65}});
  return cases;
}

Cases RowsByIndexAndViews() {
  Cases cases;
  // Rows repeat, and some of the indices are -1.
  cases.push_back({"Gather", {Rows}, [](Ops& ops, In in) {
                     const auto shape = [](int64_t) { return Shape{1, 2, 70}; };
                     const auto index = [](int64_t n) {
                       std::vector<int32_t> list;
                       for (int64_t i = 0; i < 140; ++i) {
                         list.push_back(static_cast<int32_t>(i * 7 % (n + 1) - 1));
                       }
                       return list;
                     };
                     return Out{ops.Gather(in[0], ops.FromHost(ForEachSize(in[0], shape),
                                                               ForEachSize(in[0], index)))};
                   }});
  cases.push_back(
      {"Scatter", {Rows}, [](Ops& ops, In in) {
         const auto shape = [](int64_t n) { return Shape{2, 1, n}; };
         const auto index = [](int64_t n) {
           std::vector<int32_t> list;
           for (int64_t i = 0; i < 2 * n; ++i) {
             list.push_back(static_cast<int32_t>(i * 7 % 34 - 1));
           }
           return list;
         };
         const auto rows = [](int64_t) { return int64_t{33}; };
         const auto by = [](int64_t) {
           std::vector<float> list;
           for (int64_t i = 0; i < 66; ++i) list.push_back(static_cast<float>(i % 5));
           return list;
         };
         const auto divisors = [](int64_t) { return Shape{1, 2, 33}; };
         const Tensor at = ops.FromHost(ForEachSize(in[0], shape), ForEachSize(in[0], index));
         const Tensor divisor = ops.FromHost(ForEachSize(in[0], divisors), ForEachSize(in[0], by));
         return Out{ops.Scatter(in[0], at, ForEachSize(in[0], rows)),
                    ops.Scatter(in[0], at, ForEachSize(in[0], rows), {.divisor = divisor})};
       }});
  // Every row with every column, of a tensor that repeats over the batch.
  cases.push_back(
      {"GatherPairs",
       {[](int64_t n) {
         return Shape{1, 2, n, 9};
       }},
       [](Ops& ops, In in) {
         const auto index = [](int64_t count, int64_t below) {
           std::vector<int32_t> list;
           for (int64_t i = 0; i < count; ++i) {
             list.push_back(static_cast<int32_t>(i * 7 % (below + 1) - 1));
           }
           return list;
         };
         const auto rows = [](int64_t) { return Shape{2, 1, 20}; };
         const auto columns = [](int64_t) { return Shape{1, 2, 11}; };
         const auto of_rows = [&](int64_t n) { return index(40, n); };
         const auto of_columns = [&](int64_t) { return index(22, 9); };
         return Out{ops.GatherPairs(
             in[0], ops.FromHost(ForEachSize(in[0], rows), ForEachSize(in[0], of_rows)),
             ops.FromHost(ForEachSize(in[0], columns), ForEachSize(in[0], of_columns)))};
       }});
  cases.push_back({"Orders", {Rows}, [](Ops& ops, In in) {
                     const auto all = [](int64_t n) { return n; };
                     const auto half = [](int64_t n) { return n / 2; };
                     const Tensor x = ops.Transpose(in[0], 2, 3);
                     return Out{
                         ops.Apply(ElementOp::kCopy, ops.Sort(x, ForEachSize(in[0], all))),
                         ops.Apply(ElementOp::kCopy, ops.TopK(x, ForEachSize(in[0], half))),
                         ops.Apply(ElementOp::kCopy, ops.TopK(x, ForEachSize(in[0], half), true)),
                         ops.Apply(ElementOp::kCopy, ops.ArgMax(x))};
                   }});
  cases.push_back({"Views", {Rows, Rows}, [](Ops& ops, In in) {
                     const auto third = [](int64_t n) { return n / 3; };
                     const auto all = [](int64_t n) { return n; };
                     const auto columns = [](int64_t n) { return n >= 5 ? (n - 5) / 2 + 1 : 0; };
                     const auto flat = [](int64_t n) { return Shape{2, n, 18}; };
                     return Out{
                         ops.Concat({in[0], in[1], in[0]}, 2),
                         ops.Slice(in[0], 2, ForEachSize(in[0], third), ForEachSize(in[0], all), 2),
                         ops.Unfold(in[1], ForEachSize(in[1], columns), 5, 2, 1),
                         ops.Reshape(ops.Transpose(in[1], 1, 2), ForEachSize(in[1], flat))};
                   }});
  cases.push_back({"ExpandAndSumTo", {Rows, Fixed({1, 2, 1, 9})}, [](Ops& ops, In in) {
                     const auto column = [](int64_t n) { return Shape{2, 1, n, 1}; };
                     return Out{ops.Expand(in[1], ForEachSize(in[0], Rows)),
                                ops.SumTo(in[0], ForEachSize(in[0], column))};
                   }});
  // A composition of operations that depend on the length.
  cases.push_back(
      {"SplitBatch", {Rows}, [](Ops& ops, In in) {
         const auto lengths = [](int64_t n) { return std::vector{n, n / 2}; };
         return Out{ops.JoinBatch(
             ops.Softmax(ops.SplitBatch(in[0], ForEachSize(in[0], lengths)), 2), ShapesOf(in[0]))};
       }});
  cases.push_back({"SplitRows", {Rows}, [](Ops& ops, In in) {
                     const auto cuts = [](int64_t n) { return std::vector{int64_t{0}, n / 3, n}; };
                     const RowCuts all = ForEachSize(in[0], cuts);
                     return Out{ops.JoinRows(ops.Softmax(ops.SplitRows(in[0], 2, all), 2), 2,
                                             ShapesOf(in[0]), all)};
                   }});
  return cases;
}

class OpsOnCpu : public ::testing::TestWithParam<FormulaCase> {};

TEST_P(OpsOnCpu, RunsOnEveryInstructionSetAsInPlainLoops) { ExpectAsInPlainLoops(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Elementwise, OpsOnCpu, ::testing::ValuesIn(Elementwise()), NameOf);
INSTANTIATE_TEST_SUITE_P(Axis, OpsOnCpu, ::testing::ValuesIn(AlongAnAxis()), NameOf);
INSTANTIATE_TEST_SUITE_P(Products, OpsOnCpu, ::testing::ValuesIn(Products()), NameOf);
INSTANTIATE_TEST_SUITE_P(Scans, OpsOnCpu, ::testing::ValuesIn(Scans()), NameOf);
INSTANTIATE_TEST_SUITE_P(RandomFeatures, OpsOnCpu, ::testing::ValuesIn(RandomFeaturesOfRows()),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Rows, OpsOnCpu, ::testing::ValuesIn(RowsByIndexAndViews()), NameOf);

}  // namespace
}  // namespace attnd::testing
