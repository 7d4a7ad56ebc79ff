// Symptom: a method failed on a device that declines a launch. The composition of ops gives the
// same values, gradients and counts, and its plan bounds its memory.
#include <cmath>
#include <limits>

#include "kernels/ops/feature_map.h"
#include "tests/ops/ops_on_cpu_case.h"
#include "tests/plain/declining_device.h"

namespace attnd::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");

Shape RowsWithoutColumns(int64_t n) { return {2, 2, n}; }

std::vector<RowRange> Overlaps(int64_t n) {
  std::vector<RowRange> ranges = {{0, 0}};
  for (int64_t i = 0; i < n; i += 3) ranges.push_back({i, std::min(n, i + 8)});
  ranges.push_back({n, n});
  return ranges;
}

// Ranges with gaps between them, some of them empty.
std::vector<RowRange> Gaps(int64_t n) {
  std::vector<RowRange> ranges;
  for (int64_t i = 0; i + 5 < n; i += 9) {
    ranges.push_back({i, i + 5});
    ranges.push_back({i + 5, i + 5});
  }
  return ranges;
}

Cases AlongAnAxis() {
  Cases cases;
  for (int axis : {0, 2, 3}) {
    cases.push_back({Numbered("Softmax", {axis}), {Rows}, [=](Ops& ops, In in) {
                       const Tensor x = ops.Transpose(ops.Affine(in[0], 20), 1, 3);
                       const Tensor half = ops.Copy(in[0], DType::kBF16);
                       return Out{ops.Softmax(x, axis), ops.LogSoftmax(x, axis),
                                  ops.Softmax(half, axis), ops.LogSoftmax(in[0], axis)};
                     }});
  }
  cases.push_back(
      {"LayerNorm", {Rows, Fixed({1, 1, 1, 9}), Fixed({1, 2, 1, 9})}, [](Ops& ops, In in) {
         const Tensor half = ops.Copy(in[0], DType::kF16);
         return Out{ops.LayerNorm(in[0], 0.1, in[1], in[2]),
                    ops.LayerNorm(ops.Transpose(half, 1, 2), 0.1)};
       }});
  cases.push_back({"LayerNormOfLongRows",
                   {[](int64_t n) {
                     return Shape{2, n};
                   }},
                   [](Ops& ops, In in) { return Out{ops.LayerNorm(in[0], 0.1)}; }});
  cases.push_back(
      {"FeatureRows", {Rows}, [](Ops& ops, In in) {
         const Tensor x = ops.Transpose(ops.Copy(in[0], DType::kF16), 1, 2);
         const Tensor positive = ops.Affine(in[0], 1, 2);
         return Out{FeaturesOf(ops, x, {.nu = 3, .norm = RowNorm::kSum}),
                    FeaturesOf(ops, positive, {.map = ElementOp::kSilu, .norm = RowNorm::kSum}),
                    FeaturesOf(ops, x, {.norm = RowNorm::kL2, .eps = 1e-2}),
                    FeaturesOf(ops, positive, {.norm = RowNorm::kL2, .offset = 0.5})};
       }});
  cases.push_back(NormsOfFarRows());
  return cases;
}

Cases Pools() {
  Cases cases;
  for (PoolOp op : {PoolOp::kSum, PoolOp::kMean, PoolOp::kMax}) {
    cases.push_back({Numbered("Pool", {static_cast<int>(op)}), {Rows}, [=](Ops& ops, In in) {
                       const auto windows = [](int64_t n) { return Windows(n, 7); };
                       const Tensor x = ops.Copy(in[0], DType::kBF16);
                       return Out{ops.Pool(op, in[0], ForEachSize(in[0], windows)),
                                  ops.Pool(op, in[0], ForEachSize(in[0], Overlaps)),
                                  ops.Pool(op, x, ForEachSize(in[0], Gaps))};
                     }});
    // Transposed rows, in rank 3.
    cases.push_back({Numbered("PoolTransposed", {static_cast<int>(op)}),
                     {[](int64_t n) {
                       return Shape{2, 5, n};
                     }},
                     [=](Ops& ops, In in) {
                       const Tensor x = ops.Transpose(in[0], 1, 2);
                       std::vector<std::vector<RowRange>> ranges;
                       for (size_t p = 0; p < x.size(); ++p) {
                         ranges.push_back(Overlaps(x[p].shape[1]));
                       }
                       return Out{ops.Pool(op, x, ranges)};
                     }});
    // Six dimensions, the most that there are; the first ones are not in order.
    cases.push_back({Numbered("PoolOfSixDimensions", {static_cast<int>(op)}),
                     {[](int64_t n) { return Shape{2, 3, 1, 2, n, 3}; }},
                     [=](Ops& ops, In in) {
                       const Tensor x = ops.Transpose(in[0], 0, 1);
                       std::vector<std::vector<RowRange>> ranges;
                       for (size_t p = 0; p < x.size(); ++p) {
                         ranges.push_back(Overlaps(x[p].shape[4]));
                       }
                       return Out{ops.Pool(op, x, ranges)};
                     },
                     {0, 1, 65}});
  }
  return cases;
}

Cases MergesAndConvolutions() {
  Cases cases;
  const ShapeOf lse = RowsWithoutColumns;
  cases.push_back({"Merge", {Rows, lse, Rows, lse, Rows, lse}, [](Ops& ops, In in) {
                     const AttendOut out = ops.Merge(
                         {{in[0], ops.Affine(in[1], 30)}, {in[2], in[3]}, {in[4], in[5]}});
                     return Out{out.out, out.lse};
                   }});
  cases.push_back({"MergeOfOne", {Rows, lse}, [](Ops& ops, In in) {
                     const AttendOut out = ops.Merge({{in[0], in[1]}});
                     return Out{out.out, out.lse};
                   }});
  cases.push_back({"MergeOfHalves", {Rows, lse, Rows, lse}, [](Ops& ops, In in) {
                     const Tensor a = ops.Copy(in[0], DType::kBF16);
                     return Out{ops.Merge({{a, in[1]}, {in[2], in[3]}}).out};
                   }});
  for (int left : {0, 3, 7, -2, 140}) {
    cases.push_back(
        {"DepthwiseConv" + std::string(left < 0 ? "Minus" : "") + std::to_string(std::abs(left)),
         {Rows, Fixed({2, 7}), Fixed({1, 4})},
         [=](Ops& ops, In in) {
           const Tensor x = ops.Copy(in[0], DType::kBF16);
           return Out{ops.DepthwiseConv1d(in[0], in[1], left), ops.DepthwiseConv1d(x, in[2], left)};
         }});
  }
  return cases;
}

Cases Features() {
  Cases cases;
  for (int kind = 0; kind < 5; ++kind) {
    const auto feature = static_cast<RandomFeature>(kind);
    const double eps = HasWaves(feature) ? 0 : 0.05;
    for (bool shares : {false, true}) {
      if (shares && !HasShift(feature)) continue;
      cases.push_back({Numbered("RandomFeatures", {kind, shares ? 1 : 0}),
                       {Rows, Fixed({1, 2, 20, 9}), Fixed({1, 1, 7, 9})},
                       [=](Ops& ops, In in) {
                         const RandomFeaturesParams params = {.feature = feature,
                                                              .alpha = 0.7,
                                                              .factor = 0.4,
                                                              .eps = eps,
                                                              .shares_shift = shares,
                                                              .map = ElementOp::kTanh};
                         const Tensor half = ops.Copy(in[0], DType::kBF16);
                         return Out{ops.RandomFeatures(in[0], ops.Stop(in[1]), params).phi,
                                    ops.RandomFeatures(ops.Stop(half), in[2], params).phi,
                                    ops.RandomFeatures(ops.Stop(half), ops.Stop(in[1]), params).phi,
                                    ops.Affine(in[1], 1)};
                       }});
    }
  }
  return cases;
}

struct Counts {
  double pairs = 0, flops = 0;
  int64_t peak = 0;
};

// Counts of the formula and its gradients.
Counts CountsOf(Device& device, const Formula& formula, std::vector<Values> inputs,
                BufferPool* pool) {
  Stream stream(device, pool);
  Tape tape;
  Ops ops(stream, &tape);
  std::vector<Tensor> tensors, flows;
  for (Values& values : inputs) {
    tensors.push_back(values.AsTensor());
    tape.Watch(tensors.back());
  }
  const std::vector<Tensor> outputs = formula(ops, tensors);
  for (const Tensor& out : outputs) flows.push_back(ops.Copy(out));
  static_cast<void>(tape.Replay(ops, outputs, flows, tensors));
  EXPECT_TRUE(ops.status().ok()) << ops.status();
  return {stream.work().visible_pairs, stream.work().flops, stream.workspace().peak_bytes()};
}

void ExpectSameCounts(Device& device, Device& declining, const Formula& formula,
                      const std::vector<Values>& inputs) {
  BufferPool pool(int64_t{1} << 20, /*poison=*/true);
  const Counts want = CountsOf(device, formula, inputs, &pool);
  const Counts real = CountsOf(declining, formula, inputs, &pool);
  const Counts dry = CountsOf(declining, formula, inputs, nullptr);
  for (const Counts& got : {real, dry}) {
    EXPECT_EQ(got.pairs, want.pairs);
    EXPECT_EQ(got.flops, want.flops);
  }
  EXPECT_GE(dry.peak, real.peak);
}

class DeclinedTest : public ::testing::TestWithParam<FormulaCase> {};

// Both round to float32 (plain loops when they store) and sum up to 131 numbers in the forward and
// in the gradient: the bound of ExpectNear.
TEST_P(DeclinedTest, IsComposedOfLaunchesThatTheDeviceRuns) {
  const FormulaCase& c = GetParam();
  std::vector<Values> inputs;
  for (const ShapeOf& shape : c.inputs) {
    std::vector<Shape> shapes;
    for (int64_t n : c.sizes) shapes.push_back(shape(n));
    inputs.push_back(Random(shapes, static_cast<unsigned>(inputs.size() + 1)));
  }
  PlainDevice plain;
  for (Device* device :
       {static_cast<Device*>(&plain), static_cast<Device*>(&CpuOf(AvailableIsas().back(), 2))}) {
    SCOPED_TRACE(device->info().name);
    DecliningDevice declining(*device);
    const Results want = RunFormula(*device, c.formula, inputs);
    const Results got = RunFormula(declining, c.formula, inputs);
    Compare(got, want, 0, ExpectNear);
    EXPECT_TRUE(declining.was_declined().any());
    ExpectSameCounts(*device, declining, c.formula, inputs);
    // Alone and in a list: the same bits.
    for (size_t p = 0; p < c.sizes.size(); ++p) {
      std::vector<Values> alone;
      for (const Values& list : inputs) alone.push_back({{list.shapes[p]}, {list.data[p]}});
      Compare(RunFormula(declining, c.formula, alone, p), got, p, ExpectSameBits);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Axis, DeclinedTest, ::testing::ValuesIn(AlongAnAxis()), NameOf);
INSTANTIATE_TEST_SUITE_P(Pools, DeclinedTest, ::testing::ValuesIn(Pools()), NameOf);
INSTANTIATE_TEST_SUITE_P(Rows, DeclinedTest, ::testing::ValuesIn(MergesAndConvolutions()), NameOf);
INSTANTIATE_TEST_SUITE_P(Features, DeclinedTest, ::testing::ValuesIn(Features()), NameOf);

// Infinities and NaN alike; numbers within 8 roundings.
void ExpectAlike(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t e = 0; e < want.size(); ++e) {
    if (got[e] == want[e] || (std::isnan(got[e]) && std::isnan(want[e]))) continue;
    EXPECT_LE(std::fabs(got[e] - want[e]), 8 * std::fabs(want[e]) / (1 << 24))
        << "element " << e << " is " << got[e] << ", should be " << want[e];
  }
}

void ExpectAlikeOnCpu(const Formula& formula, const std::vector<Values>& inputs) {
  Device& cpu = CpuOf(AvailableIsas().back(), 1);
  DecliningDevice declining(cpu);
  Compare(RunFormula(declining, formula, inputs), RunFormula(cpu, formula, inputs), 0, ExpectAlike);
}

TEST(DeclinedLaunches, RowsOfSoftmaxWithInfinitiesAndNan) {
  const Values x{{{5, 4}}, {{-kInf, -kInf, -kInf, -kInf, -kInf, 1,   2,    -kInf, kInf, 1, 2, 3,  //
                             kNan,  1,     -kInf, 2,     700,   701, -700, 3e38f}}};
  ExpectAlikeOnCpu([](Ops& ops, In in) { return Out{ops.Softmax(in[0], 1)}; }, {x});
  ExpectAlikeOnCpu([](Ops& ops, In in) { return Out{ops.LogSoftmax(in[0], 1)}; }, {x});
}

TEST(DeclinedLaunches, PartsOfMergeThatSeeNoKeyOrAnInfiniteOne) {
  const Values a{{{6, 2}}, {{kNan, kNan, 1, 2, 3, 4, 5, 6, kNan, 1, 2, 3}}};
  const Values lse_a{{{6}}, {{-kInf, 0, kInf, -kInf, 0, kNan}}};
  const Values b{{{6, 2}}, {{1, 2, kNan, kInf, 5, 6, kNan, kInf, 1, 2, 3, 4}}};
  const Values lse_b{{{6}}, {{1, -kInf, 3, -kInf, -200, 1}}};
  ExpectAlikeOnCpu(
      [](Ops& ops, In in) {
        const AttendOut out = ops.Merge({{in[0], in[1]}, {in[2], in[3]}});
        return Out{out.out, out.lse};
      },
      {a, lse_a, b, lse_b});
}

// Two sums that differ by a rounding of float32 may round to neighbours of bfloat16.
void ExpectWithinHalfPrecision(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t e = 0; e < want.size(); ++e) ASSERT_NEAR(got[e], want[e], 1.0 / 64) << e;
}

TEST(DeclinedLaunches, MergeWritesTheDtypeAskedFor) {
  const Formula merge = [](Ops& ops, In in) {
    const AttendOut out = ops.Merge({{in[0], in[1]}, {in[2], in[3]}}, DType::kBF16);
    EXPECT_TRUE(out.out.empty() || out.out[0].dtype == DType::kBF16);
    return Out{ops.Copy(out.out)};
  };
  const std::vector<Values> inputs = {Random({Rows(65)}, 1), Random({RowsWithoutColumns(65)}, 2),
                                      Random({Rows(65)}, 3), Random({RowsWithoutColumns(65)}, 4)};
  Device& cpu = CpuOf(AvailableIsas().back(), 1);
  DecliningDevice declining(cpu);
  Compare(RunFormula(declining, merge, inputs), RunFormula(cpu, merge, inputs), 0,
          ExpectWithinHalfPrecision);
}

TEST(DeclinedLaunches, PoolsOfNanOfInfinitiesAndOfNothing) {
  // Columns: ties, -inf only, NaN beside numbers, NaN and -inf.
  const Values x{{{6, 4}}, {{2, -kInf, 1, kNan, 2, -kInf, kNan, -kInf, 1,    -kInf, 3, kNan,  //
                             5, -kInf, 7, 1,    5, kInf,  7,    1,     kNan, 0,     0, 0}}};
  const Values none{{{0, 4}}, {{}}};
  const std::vector<RowRange> ranges = {{0, 0}, {0, 3}, {1, 3}, {3, 3}, {3, 5}, {3, 5}};
  for (PoolOp op : {PoolOp::kSum, PoolOp::kMean, PoolOp::kMax}) {
    ExpectAlikeOnCpu([&](Ops& ops, In in) { return Out{ops.Pool(op, in[0], {ranges})}; }, {x});
    ExpectAlikeOnCpu(
        [&](Ops& ops, In in) { return Out{ops.Pool(op, in[0], {std::vector<RowRange>(3)})}; },
        {none});
  }
}

}  // namespace
}  // namespace attnd::testing
