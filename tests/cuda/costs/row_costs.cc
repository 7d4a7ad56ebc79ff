// Primitives along rows and by index: memory is their bound.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/cuda/costs/table.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {
namespace {

constexpr int64_t kRows = 2048, kWidth = 64;

// Every given array of a launch moves once.
void Row(const std::string& name, const Launch& launch, double flops, const Table& table) {
  double bytes = 0, smallest = HUGE_VAL;
  ForEachView(launch, [&](const View& view) {
    if (!view.given()) return;
    const auto size = static_cast<double>(view.shape.size() * SizeOf(view.dtype));
    bytes += size;
    smallest = std::min(smallest, size);
  });
  table.Row(name, {flops, Unit::kScalar, bytes, smallest}, launch);
}

TestArray Random(unsigned seed, const Shape& shape, DType dtype = DType::kF32) {
  return TestArray::Random(seed, dtype, shape);
}

// A permutation of the rows.
TestArray Shuffled(int64_t rows) {
  TestArray index(DType::kI32, {rows});
  PlainArray order = index.Read();
  std::iota(order.values.begin(), order.values.end(), 0.0);
  std::shuffle(order.values.begin(), order.values.end(), std::minstd_rand(1));
  index.Write(order);
  return index;
}

void Along(const Table& table) {
  const TestArray x = Random(1, {kRows, kWidth}), out(DType::kF32, {kRows, kWidth});
  const TestArray rstd(DType::kF32, {kRows, 1}), dy = Random(2, {kRows, kWidth});
  const TestArray dx(DType::kF32, {kRows, kWidth}), sum(DType::kF32, {1, kWidth});
  const TestArray wide = Random(3, {256, 1024}), wide_out(DType::kF32, {256, 1024});
  Row("`softmax` of 64", SoftmaxArgs{.axis = 1, .problems = {{x.view(), out.view()}}}, 0, table);
  Row("`softmax` of 1024", SoftmaxArgs{.axis = 1, .problems = {{wide.view(), wide_out.view()}}}, 0,
      table);
  Row("`softmax` of columns", SoftmaxArgs{.axis = 0, .problems = {{x.view(), out.view()}}}, 0,
      table);
  Row("`reduce` of columns", ReduceArgs{.axis = 0, .problems = {{x.view(), sum.view()}}}, 0, table);
  Row("`cumulative` of columns",
      CumulativeArgs{.axis = 0, .problems = {{x.view(), out.view(), {}}}}, 0, table);
  Row("`layer_norm` of 64", LayerNormArgs{.problems = {{x.view(), out.view(), rstd.view()}}}, 0,
      table);
  Row("its gradient",
      LayerNormGradArgs{.problems = {{x.view(), rstd.view(), dy.view(), dx.view()}}}, 0, table);
}

void ByIndex(const Table& table) {
  const TestArray index = Shuffled(kRows);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::string type = dtype == DType::kF32 ? " float32" : " bf16";
    const TestArray x = Random(1, {kRows, kWidth}, dtype), out(dtype, {kRows, kWidth});
    Row("`gather`" + type,
        GatherRowsArgs{.problems = {{x.view(), index.view(), out.view(), {}, {}}}}, 0, table);
    Row("`scatter`" + type,
        ScatterRowsArgs{.problems = {{x.view(), index.view(), out.view(), {}, {}}}}, 0, table);
  }
  const TestArray keys = Random(1, {8, 2048}), order(DType::kI32, {8, 2048});
  Row("`sort` of 2048 keys", SortArgs{.problems = {{keys.view(), order.view()}}}, 0, table);
  const TestArray few(DType::kI32, {8, 64});
  Row("`sort`, the first 64 of 2048", SortArgs{.problems = {{keys.view(), few.view()}}}, 0, table);
}

void Merge(const Table& table) {
  const Shape shape = {1, 2, 1024, kWidth}, rows = {1, 2, 1024};
  std::vector<TestArray> outs, lses, douts, dlses;
  MergeProblem problem;
  MergeGradProblem grad;
  for (unsigned p = 0; p < 4; ++p) {
    outs.push_back(Random(p, shape));
    lses.push_back(Random(p + 10, rows));
    douts.emplace_back(DType::kF32, shape);
    dlses.emplace_back(DType::kF32, rows);
    problem.parts.push_back({outs.back().view(), lses.back().view()});
    grad.dparts.push_back({douts.back().view(), dlses.back().view()});
  }
  const TestArray out(DType::kF32, shape), lse(DType::kF32, rows);
  problem.out = out.view();
  problem.lse = lse.view();
  Row("`merge` of 4 parts", MergeArgs{.problems = {problem}}, 0, table);
  const TestArray dout = Random(20, shape), dlse = Random(21, rows);
  grad.forward = problem;
  grad.dout = dout.view();
  grad.dlse = dlse.view();
  Row("its gradient", MergeGradArgs{.problems = {grad}}, 0, table);
}

void Features(const Table& table) {
  const TestArray x = Random(1, {kRows, kWidth}), phi(DType::kF32, {kRows, kWidth});
  Row("`feature_rows` elu + 1, norm",
      FeatureRowsArgs{.features = {.map = ElementOp::kEluPlusOne, .norm = RowNorm::kSum},
                      .problems = {{x.view(), {}, phi.view()}}},
      0, table);
  const TestArray projected(DType::kF32, {kRows, 2 * kWidth});
  Row("`feature_rows` dpfp",
      FeatureRowsArgs{.features = {.nu = 1}, .problems = {{x.view(), {}, projected.view()}}}, 0,
      table);
  constexpr int64_t kDirections = 128;
  const TestArray rows = Random(2, {1, 2, 1024, kWidth}),
                  w = Random(3, {1, 2, kDirections, kWidth});
  const TestArray features(DType::kF32, {1, 2, 1024, kDirections});
  const TestArray shift(DType::kF32, {1, 2, 1024, 1}), dx(DType::kF32, {1, 2, 1024, kWidth});
  const TestArray dphi = Random(4, {1, 2, 1024, kDirections});
  const RandomFeaturesProblem problem = {rows.view(), w.view(), features.view(), shift.view()};
  const double product = 2.0 * 2 * 1024 * kDirections * kWidth;
  Row("`random_features` exp", RandomFeaturesArgs{.problems = {problem}}, product, table);
  Row("its gradient", RandomFeaturesGradArgs{.problems = {{problem, dphi.view(), dx.view()}}},
      product, table);
}

void Others(const Table& table) {
  const TestArray x = Random(1, {1, 1, 256, kWidth}), out(DType::kF32, {1, 1, 256, kWidth});
  // 2.5 N log2 N real multiply-adds of a transform by radix 2, halved for real input.
  const double points = 256.0 * kWidth;
  Row("`fft` 256 x 64", FftArgs{.problems = {{x.view(), out.view()}}},
      2.5 * points * std::log2(points), table);
  const TestArray longer = Random(2, {1, 1, 1024, 256}), longer_out(DType::kF32, {1, 1, 1024, 256});
  const double more = 1024.0 * 256;
  Row("`fft` 1024 x 256", FftArgs{.problems = {{longer.view(), longer_out.view()}}},
      2.5 * more * std::log2(more), table);
  const TestArray a = Random(3, {kRows, kWidth}), b = Random(4, {kRows, 1});
  const TestArray c(DType::kF32, {kRows, kWidth});
  Row("`elementwise` add, a column repeated",
      ElementwiseArgs{.op = ElementOp::kAdd, .problems = {{a.view(), b.view(), {}, c.view()}}}, 0,
      table);
  const TestArray half = Random(5, {kRows, kWidth}, DType::kBF16);
  Row("`elementwise` gelu bf16 to float32",
      ElementwiseArgs{.op = ElementOp::kGelu, .problems = {{half.view(), {}, {}, c.view()}}}, 0,
      table);
  const TestArray heads = Random(6, {1, 2, 1024, kWidth}), taps = Random(7, {2, 33});
  const TestArray mixed(DType::kF32, {1, 2, 1024, kWidth});
  Row("`depthwise_conv`, 33 taps",
      DepthwiseConvArgs{.left = 16, .problems = {{heads.view(), taps.view(), mixed.view()}}},
      2.0 * 2 * 1024 * kWidth * 33, table);
  std::vector<RowRange> ranges;
  for (int64_t i = 0; i < kRows; i += 16) ranges.push_back({i, i + 16});
  const TestArray pooled(DType::kF32, {kRows / 16, kWidth});
  Row("`pool` mean of 16",
      PoolArgs{.op = PoolOp::kMean, .problems = {{a.view(), pooled.view(), {}, ranges}}}, 0, table);
}

}  // namespace

void PrintRows(const Table& table) {
  Along(table);
  ByIndex(table);
  Merge(table);
  Features(table);
  Others(table);
}

}  // namespace attnd::testing
