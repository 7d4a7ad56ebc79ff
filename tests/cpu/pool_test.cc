// pool and layer_norm.
#include "kernels/ops/pool.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/plain/test_array.h"

namespace attnd::testing {
namespace {

constexpr Memory kMemories[] = {Memory::kDense, Memory::kPitched, Memory::kTransposed};
constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

TEST(RangesTest, WindowsCutTheLast) {
  EXPECT_EQ(Windows(7, 3), (std::vector<RowRange>{{0, 3}, {3, 6}, {6, 7}}));
  EXPECT_EQ(Windows(6, 3), (std::vector<RowRange>{{0, 3}, {3, 6}}));
  EXPECT_TRUE(Windows(0, 3).empty());
}

TEST(RangesTest, SegmentsPutShortOnesFirst) {
  EXPECT_EQ(Segments(7, 3), (std::vector<RowRange>{{0, 2}, {2, 4}, {4, 7}}));
  EXPECT_EQ(Segments(2, 3), (std::vector<RowRange>{{0, 0}, {0, 1}, {1, 2}}));
}

TEST(RangesTest, TransposingNamesTheReaders) {
  const std::vector<RowRange> ranges = {{0, 0}, {1, 4}, {2, 4}, {4, 4}, {6, 8}};
  EXPECT_EQ(TransposeRanges(ranges, 9),
            (std::vector<RowRange>{
                {1, 1}, {1, 2}, {1, 3}, {1, 3}, {4, 4}, {4, 4}, {4, 5}, {4, 5}, {5, 5}}));
}

struct PoolCase {
  Shape shape;
  std::vector<RowRange> ranges;
};

std::vector<PoolCase> PoolCases() {
  std::vector<RowRange> overlapping;
  for (int64_t m = 0; m < 30; ++m) overlapping.push_back({2 * m, 2 * m + 7});
  return {{{2, 3, 0, 5}, {{0, 0}, {0, 0}}},
          {{2, 3, 5, 0}, {{0, 3}}},
          {{1, 2, 9, 3}, {}},
          {{2, 2, 65, 17}, Windows(65, 8)},
          {{2, 3, 67, 64}, overlapping},
          {{67, 131}, overlapping},
          {{3, 40, 1}, {{0, 0}, {0, 1}, {1, 34}, {5, 34}, {34, 34}, {39, 40}}},
          {{1, 1, 9000, 5}, {{0, 9000}, {100, 9000}}}};
}

class PoolTest : public ::testing::TestWithParam<std::string> {
 protected:
  Device& device() { return CpuOf(GetParam(), 2); }
};

TEST_P(PoolTest, EveryOperationStrideAndDtype) {
  unsigned seed = 0;
  for (const PoolCase& c : PoolCases()) {
    for (PoolOp op : {PoolOp::kSum, PoolOp::kMean, PoolOp::kMax, PoolOp::kSumWhere}) {
      for (Memory memory : kMemories) {
        SCOPED_TRACE(ToString(c.shape) + " op " + std::to_string(static_cast<int>(op)));
        seed += 1;
        const TestArray x = TestArray::Random(seed, kDTypes[seed % 3], c.shape, memory);
        Shape shape = c.shape;
        shape.dims[shape.rank - 2] = static_cast<int64_t>(c.ranges.size());
        const TestArray ours(DType::kF32, shape, kMemories[seed % 3]), plain(DType::kF32, shape);
        const TestArray our_arg(DType::kI32, shape, kMemories[seed % 3]),
            plain_arg(DType::kI32, shape);
        // Some of the places are asked for.
        const TestArray where = TestArray::Random(seed, DType::kI32, c.shape, memory, 0, 9);
        PoolProblem p = {x.view(), ours.view(), {}, c.ranges};
        const bool has_arg = op == PoolOp::kMax && seed % 2 == 0;
        if (has_arg) p.arg = our_arg.view();
        if (op == PoolOp::kSumWhere) p.arg = where.view();
        PoolArgs args = {.op = op, .problems = {p}};
        RunOn(device(), [&](Stream& stream) { return device().Run(stream, args); });
        args.problems[0].out = plain.view();
        if (has_arg) args.problems[0].arg = plain_arg.view();
        PlainRun(args);
        EXPECT_TRUE(ours.GuardsIntact() && our_arg.GuardsIntact());
        if (op == PoolOp::kMax) {
          EXPECT_EQ(ours.Read().values, plain.Read().values);
          EXPECT_EQ(our_arg.Read().values, plain_arg.Read().values);
        } else {
          // Some roundings of partial sums that are below the number of rows.
          const double rows = shape[shape.rank - 1] == 5 ? 1000 : 40;
          ExpectNear(ours.Read(), plain.Read(), 1e-6, 6e-8 * rows);
        }
      }
    }
  }
}

TEST_P(PoolTest, NanIsDataButNeverThePlaceOfAMaximum) {
  TestArray x(DType::kF32, Shape{4, 2});
  PlainArray values(Shape{4, 2});
  values.values = {1, NAN, NAN, -INFINITY, 3, NAN, 3, -INFINITY};
  x.Write(values);
  const std::vector<RowRange> ranges = {{0, 4}};
  const TestArray out(DType::kF32, Shape{1, 2}), arg(DType::kI32, Shape{1, 2});
  const PoolProblem p = {x.view(), out.view(), arg.view(), ranges};
  RunOn(device(), [&](Stream& stream) {
    return device().Run(stream, PoolArgs{.op = PoolOp::kMax, .problems = {p}});
  });
  EXPECT_TRUE(std::isnan(out.Read().values[0]));
  EXPECT_EQ(arg.Read().values, (std::vector<double>{2, 0}));
}

TEST_P(PoolTest, AListIsOneLaunchAndChangesNoBit) {
  const std::vector<PoolCase> cases = PoolCases();
  for (PoolOp op : {PoolOp::kMean, PoolOp::kMax}) {
    std::vector<TestArray> x;
    std::vector<std::vector<TestArray>> outs(3);
    std::vector<PoolProblem> problems;
    for (const PoolCase& c : cases) {
      x.push_back(TestArray::Random(3, DType::kF32, c.shape));
      Shape shape = c.shape;
      shape.dims[shape.rank - 2] = static_cast<int64_t>(c.ranges.size());
      for (auto& list : outs) list.emplace_back(DType::kF32, shape);
      problems.push_back({x.back().view(), {}, {}, c.ranges});
    }
    const auto run = [&](Device& on, std::vector<TestArray>& out, size_t first, size_t count) {
      for (size_t p = first; p < first + count; ++p) problems[p].out = out[p].view();
      const PoolArgs args = {
          .op = op, .problems = {problems.begin() + first, problems.begin() + first + count}};
      const int64_t before = on.launches();
      RunOn(on, [&](Stream& stream) { return on.Run(stream, args); });
      EXPECT_EQ(on.launches(), before + 1);
    };
    for (size_t p = 0; p < cases.size(); ++p) run(device(), outs[0], p, 1);
    run(device(), outs[1], 0, cases.size());
    run(CpuOf(GetParam(), 1), outs[2], 0, cases.size());
    for (size_t p = 0; p < cases.size(); ++p) {
      EXPECT_EQ(outs[1][p].Bytes(), outs[0][p].Bytes());
      EXPECT_EQ(outs[2][p].Bytes(), outs[0][p].Bytes());
    }
  }
}

// One layer norm of x into y of a dtype, and its rstd.
struct Normed {
  TestArray y, rstd;
};
Normed Norm(Device& device, const TestArray& x, DType dtype, Memory memory) {
  Shape rows = x.view().shape;
  rows.dims[rows.rank - 1] = 1;
  Normed normed{TestArray(dtype, x.view().shape, memory), TestArray(DType::kF32, rows, memory)};
  const LayerNormProblem p = {x.view(), normed.y.view(), normed.rstd.view()};
  RunOn(device, [&](Stream& stream) {
    return device.Run(stream, LayerNormArgs{.eps = 1e-5, .problems = {p}});
  });
  EXPECT_TRUE(normed.y.GuardsIntact() && normed.rstd.GuardsIntact());
  return normed;
}

TEST_P(PoolTest, LayerNormOfEveryLengthStrideAndDtype) {
  unsigned seed = 0;
  for (const Shape& shape : {Shape{3, 1}, Shape{0, 5}, Shape{2, 3, 5, 63}, Shape{7, 64},
                             Shape{1, 4, 3, 65}, Shape{2, 1031}, Shape{257}}) {
    for (Memory memory : kMemories) {
      for (DType dtype : kDTypes) {
        SCOPED_TRACE(ToString(shape));
        const TestArray x = TestArray::Random(++seed, dtype, shape, memory, 2, 6);
        const DType to = kDTypes[seed / 2 % 3];
        const Normed ours = Norm(device(), x, to, kMemories[seed % 3]);
        const TestArray y(DType::kF32, shape), rstd(DType::kF32, ours.rstd.view().shape);
        const LayerNormProblem p = {x.view(), y.view(), rstd.view()};
        PlainRun(LayerNormArgs{.eps = 1e-5, .problems = {p}});
        // |x| <= 6 costs 4 units of 2^-24 each in x - mean, and rstd is about 1.
        const bool is_one = shape[shape.rank - 1] == 1;
        const double unit = to == DType::kF32 ? 1e-6 : to == DType::kF16 ? 1e-3 : 8e-3;
        ExpectNear(ours.y.Read(), y.Read(), unit, is_one ? 0 : 3e-6);
        ExpectNear(ours.rstd.Read(), rstd.Read(), 1e-6, 0);
      }
    }
  }
}

TEST_P(PoolTest, LayerNormListsChangeNoBit) {
  std::vector<TestArray> x, y, rstd;
  std::vector<LayerNormProblem> problems;
  for (int64_t n : {1, 63, 64, 65, 701, 3001}) {
    x.push_back(TestArray::Random(static_cast<unsigned>(n), DType::kF32, Shape{5, n}));
    y.emplace_back(DType::kF32, Shape{5, n});
    rstd.emplace_back(DType::kF32, Shape{5, 1});
    problems.push_back({x.back().view(), y.back().view(), rstd.back().view()});
  }
  for (int threads : {1, 2}) {
    Device& on = CpuOf(GetParam(), threads);
    const int64_t before = on.launches();
    RunOn(on, [&](Stream& stream) { return on.Run(stream, LayerNormArgs{.problems = problems}); });
    EXPECT_EQ(on.launches(), before + 1);
    for (size_t p = 0; p < x.size(); ++p) {
      EXPECT_EQ(y[p].Bytes(), Norm(device(), x[p], DType::kF32, Memory::kDense).y.Bytes());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, PoolTest, ::testing::ValuesIn(AvailableIsas()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace attnd::testing
