// softmax and cumulative: along every axis of arrays that lie in memory in every way.
#include <cmath>

#include "tests/cpu/along_case.h"

namespace attnd::testing {
namespace {

Shape Same(Shape shape) { return shape; }

AxisCall SoftmaxCall(bool log) {
  return [log](Device& device, Stream& stream, int axis, std::span<const View> x,
               std::span<const View> out) {
    std::vector<SoftmaxProblem> problems;
    for (size_t p = 0; p < x.size(); ++p) problems.push_back({x[p], out[p]});
    return device.Run(stream, SoftmaxArgs{.log = log, .axis = axis, .problems = problems});
  };
}

AxisCall CumulativeCall(CumulativeOp op, bool exclusive, bool reverse) {
  return [=](Device& device, Stream& stream, int axis, std::span<const View> x,
             std::span<const View> out) {
    std::vector<CumulativeProblem> problems;
    for (size_t p = 0; p < x.size(); ++p) problems.push_back({x[p], out[p], {}});
    return device.Run(stream, CumulativeArgs{.op = op,
                                             .axis = axis,
                                             .exclusive = exclusive,
                                             .reverse = reverse,
                                             .problems = problems});
  };
}

class AlongTest : public ::testing::TestWithParam<std::string> {
 protected:
  Device& device() { return CpuOf(GetParam(), 2); }

  PlainArray Run1(const AxisCall& call, int axis, const TestArray& x, DType dtype = DType::kF32,
                  Memory memory = Memory::kDense) {
    const TestArray out(dtype, x.view().shape, memory);
    RunOn(device(), [&](Stream& stream) {
      const View in = x.view(), to = out.view();
      return call(device(), stream, axis, {&in, 1}, {&to, 1});
    });
    EXPECT_TRUE(out.GuardsIntact());
    return out.Read();
  }

  PlainArray PlainSoftmaxOf(bool log, int axis, const TestArray& x) {
    const TestArray out(DType::kF32, x.view().shape);
    const SoftmaxProblem p = {x.view(), out.view()};
    PlainRun(SoftmaxArgs{.log = log, .axis = axis, .problems = {p}});
    return out.Read();
  }

  PlainArray PlainCumulativeOf(CumulativeOp op, int axis, bool exclusive, bool reverse,
                               const TestArray& x, const View& reset = {}) {
    const TestArray out(DType::kF32, x.view().shape);
    const CumulativeProblem p = {x.view(), out.view(), reset};
    PlainRun(CumulativeArgs{
        .op = op, .axis = axis, .exclusive = exclusive, .reverse = reverse, .problems = {p}});
    return out.Read();
  }
};

// Arrays of the three dtypes and memories, in turn.
TestArray ArrayOf(const AxisCase& c, unsigned seed, double scale) {
  const DType dtypes[] = {DType::kF32, DType::kF16, DType::kBF16};
  const Memory memories[] = {Memory::kDense, Memory::kPitched, Memory::kTransposed};
  return TestArray::Random(seed, dtypes[seed % 3], c.shape, memories[seed / 3 % 3], -scale, scale);
}

TEST_P(AlongTest, SoftmaxOfEveryAxisStrideAndDtype) {
  for (const AxisCase& c : kAxisCases) {
    for (unsigned seed = 0; seed < (c.shape.size() > 50000 ? 2u : 9u); ++seed) {
      for (bool log : {false, true}) {
        SCOPED_TRACE(ToString(c.shape) + " axis " + std::to_string(c.axis) + " seed " +
                     std::to_string(seed));
        const TestArray x = ArrayOf(c, seed, 20);
        const PlainArray truth = PlainSoftmaxOf(log, c.axis, x);
        const Memory out = seed % 2 == 0 ? Memory::kTransposed : Memory::kPitched;
        // x - maximum is rounded below 64: 2e-6 of the exponential; all else takes 7 roundings.
        ExpectNear(Run1(SoftmaxCall(log), c.axis, x, DType::kF32, out), truth, log ? 2e-7 : 3e-6,
                   log ? 5e-7 : 1e-37);
        ExpectNear(Run1(SoftmaxCall(log), c.axis, x, DType::kBF16, out), truth, 5e-3,
                   log ? 5e-7 : 1e-37);
      }
    }
  }
}

TEST_P(AlongTest, SoftmaxOfALongAxisSumsToOne) {
  for (Shape shape : {Shape{2, 150001}, Shape{9001, 3}}) {
    const int axis = shape[0] == 2 ? 1 : 0;
    const TestArray x = TestArray::Random(5, DType::kF32, shape, Memory::kDense, -30, 30);
    const PlainArray y = Run1(SoftmaxCall(false), axis, x), in = x.Read();
    std::vector<double> sums(3, 0), truth(3, 0);
    ForEachIndex(shape, [&](const std::vector<int64_t>& index) {
      const auto line = static_cast<size_t>(index[static_cast<size_t>(1 - axis)]);
      sums[line] += y.At(index);
      truth[line] += std::exp(in.At(index));
    });
    ForEachIndex(shape, [&](const std::vector<int64_t>& index) {
      const auto line = static_cast<size_t>(index[static_cast<size_t>(1 - axis)]);
      const double expected = std::exp(in.At(index)) / truth[line];
      ASSERT_NEAR(y.At(index), expected, 3e-6 * expected);
    });
    EXPECT_NEAR(sums[0], 1, 1e-6);
  }
}

TEST_P(AlongTest, SoftmaxOfNothingVisibleIsZero) {
  for (int axis : {0, 1}) {
    TestArray x(DType::kF32, Shape{40, 40});
    PlainArray values(x.view().shape, -INFINITY);
    values.At(axis == 1 ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{3, 1}) = 5;
    x.Write(values);
    for (bool log : {false, true}) {
      ExpectNear(Run1(SoftmaxCall(log), axis, x), PlainSoftmaxOf(log, axis, x), 0, 0);
    }
  }
}

TEST_P(AlongTest, SoftmaxListsChangeNoBit) {
  for (bool log : {false, true}) {
    ExpectSameAloneAndListed(GetParam(), SoftmaxCall(log), DType::kF32, Same, /*axis=*/1, 2);
    ExpectSameAloneAndListed(GetParam(), SoftmaxCall(log), DType::kF16, Same, /*axis=*/2, 1);
  }
}

constexpr CumulativeOp kOps[] = {CumulativeOp::kSum, CumulativeOp::kMax, CumulativeOp::kLogSumExp};

TEST_P(AlongTest, CumulativeOfEveryAxisStrideAndDtype) {
  for (const AxisCase& c : kAxisCases) {
    for (unsigned seed = 0; seed < (c.shape.size() > 50000 ? 2u : 9u); ++seed) {
      const CumulativeOp op = kOps[seed % 3];
      const TestArray x = ArrayOf(c, seed + seed / 3, 20);
      const Memory out = seed % 2 == 0 ? Memory::kTransposed : Memory::kDense;
      for (int way = 0; way < 4; ++way) {
        SCOPED_TRACE(ToString(c.shape) + " axis " + std::to_string(c.axis) + " seed " +
                     std::to_string(seed) + " way " + std::to_string(way));
        const bool exclusive = way % 2 != 0, reverse = way / 2 != 0;
        // Sums in float64, rounded once.
        ExpectNear(Run1(CumulativeCall(op, exclusive, reverse), c.axis, x, DType::kF32, out),
                   PlainCumulativeOf(op, c.axis, exclusive, reverse, x), 1.3e-7, 1e-9);
      }
    }
  }
}

TEST_P(AlongTest, CumulativeSumsOfLongAxesStayExact) {
  TestArray x(DType::kF32, Shape{100003, 2});
  x.Write(PlainArray(x.view().shape, 0.1f));
  const PlainArray ours = Run1(CumulativeCall(CumulativeOp::kSum, false, true), 0, x);
  for (int64_t i = 0; i < 100003; ++i) {
    const double truth = static_cast<double>(100003 - i) * static_cast<double>(0.1f);
    ASSERT_NEAR(ours.At({i, 1}), truth, 6e-8 * truth) << i;
  }
}

TEST_P(AlongTest, CumulativeInfinitiesAndNan) {
  const double n = NAN, inf = INFINITY;
  const std::vector<double> column = {-inf, -inf, 1, -inf, 700, 701, inf, 3, inf, n, 2};
  PlainArray values(Shape{static_cast<int64_t>(column.size()), 1});
  values.values = column;
  TestArray x(DType::kF32, values.shape);
  x.Write(values);
  for (CumulativeOp op : kOps) {
    for (int way = 0; way < 4; ++way) {
      SCOPED_TRACE(static_cast<int>(op) * 4 + way);
      const bool exclusive = way % 2 != 0, reverse = way / 2 != 0;
      ExpectNear(Run1(CumulativeCall(op, exclusive, reverse), 0, x),
                 PlainCumulativeOf(op, 0, exclusive, reverse, x), 1e-7, 0);
    }
  }
}

TEST_P(AlongTest, CumulativeSumsBeginAnew) {
  for (const Shape& shape : {Shape{2, 67, 5}, Shape{1, 8300, 2}}) {
    const TestArray x = TestArray::Random(1, DType::kF32, shape, Memory::kTransposed);
    TestArray reset(DType::kF32, shape, Memory::kPitched);
    PlainArray resets(shape);
    for (size_t i = 0; i < resets.values.size(); ++i) {
      resets.values[i] = i % 11 == 0 || i % 7 == 3 ? 1 : 0;
      if (shape[1] == 8300 && i > 4000) resets.values[i] = 0;
    }
    reset.Write(resets);
    for (int way = 0; way < 4; ++way) {
      const bool exclusive = way % 2 != 0, reverse = way / 2 != 0;
      const TestArray out(DType::kF32, shape);
      const CumulativeProblem p = {x.view(), out.view(), reset.view()};
      RunOn(device(), [&](Stream& stream) {
        return device().Run(
            stream,
            CumulativeArgs{.axis = 1, .exclusive = exclusive, .reverse = reverse, .problems = {p}});
      });
      ExpectNear(out.Read(),
                 PlainCumulativeOf(CumulativeOp::kSum, 1, exclusive, reverse, x, reset.view()),
                 1.3e-7, 1e-9);
    }
  }
}

TEST_P(AlongTest, CumulativeListsChangeNoBit) {
  for (CumulativeOp op : kOps) {
    for (int axis : {1, 2}) {
      ExpectSameAloneAndListed(GetParam(), CumulativeCall(op, axis == 1, axis == 2), DType::kF32,
                               Same, axis, 2);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, AlongTest, ::testing::ValuesIn(AvailableIsas()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace attnd::testing
