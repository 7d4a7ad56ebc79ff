// reduce: every operation along every axis of arrays that lie in memory in every way.
#include "kernels/device/reduce.h"

#include <cmath>

#include "tests/cpu/along_case.h"

namespace attnd::testing {
namespace {

constexpr ReduceOp kOps[] = {ReduceOp::kSum,       ReduceOp::kMean,   ReduceOp::kMax,
                             ReduceOp::kLogSumExp, ReduceOp::kArgMax, ReduceOp::kArgMaxSigned};

Shape Without(Shape shape, int axis) {
  shape.dims[axis] = 1;
  return shape;
}

DType OutOf(ReduceOp op) { return IsArgMax(op) ? DType::kI32 : DType::kF32; }

AxisCall CallOf(ReduceOp op) {
  return [op](Device& device, Stream& stream, int axis, std::span<const View> x,
              std::span<const View> out) {
    std::vector<ReduceProblem> problems;
    for (size_t p = 0; p < x.size(); ++p) problems.push_back({x[p], out[p]});
    return device.Run(stream, ReduceArgs{.op = op, .axis = axis, .problems = problems});
  };
}

// Plain sums in float32, one element after the other.
PlainArray FloatSums(const PlainArray& x, int axis, bool mean) {
  PlainArray sums(Without(x.shape, axis));
  ForEachIndex(sums.shape, [&](std::vector<int64_t> index) {
    float sum = 0;
    double& to = sums.At(index);
    for (int64_t i = 0; i < x.shape[axis]; ++i) {
      index[static_cast<size_t>(axis)] = i;
      sum += static_cast<float>(x.At(index));
    }
    to = mean && x.shape[axis] > 0 ? sum / static_cast<float>(x.shape[axis]) : sum;
  });
  return sums;
}

class ReduceTest : public ::testing::TestWithParam<std::string> {
 protected:
  Device& device() { return CpuOf(GetParam(), 2); }

  PlainArray Reduce(ReduceOp op, int axis, const TestArray& x, Memory out_memory) {
    const TestArray out(OutOf(op), Without(x.view().shape, axis), out_memory);
    RunOn(device(), [&](Stream& stream) {
      const View in = x.view(), to = out.view();
      return CallOf(op)(device(), stream, axis, {&in, 1}, {&to, 1});
    });
    EXPECT_TRUE(out.GuardsIntact());
    return out.Read();
  }

  PlainArray Plain(ReduceOp op, int axis, const TestArray& x) {
    const TestArray out(OutOf(op), Without(x.view().shape, axis));
    const ReduceProblem p = {x.view(), out.view()};
    PlainRun(ReduceArgs{.op = op, .axis = axis, .problems = {p}});
    return out.Read();
  }
};

TEST_P(ReduceTest, EveryAxisStrideAndDtype) {
  unsigned seed = 0;
  for (const AxisCase& c : kAxisCases) {
    for (Memory memory : {Memory::kDense, Memory::kPitched, Memory::kTransposed}) {
      const DType dtypes[] = {DType::kF32, DType::kF16, DType::kBF16};
      const DType dtype = c.shape.size() > 50000 ? DType::kF32 : dtypes[++seed % 3];
      const TestArray x = TestArray::Random(seed, dtype, c.shape, memory);
      const Memory out = seed % 2 == 0 ? Memory::kDense : Memory::kTransposed;
      for (ReduceOp op : kOps) {
        SCOPED_TRACE(ToString(c.shape) + " axis " + std::to_string(c.axis) + " op " +
                     std::to_string(static_cast<int>(op)) + " seed " + std::to_string(seed));
        const PlainArray ours = Reduce(op, c.axis, x, out), truth = Plain(op, c.axis, x);
        if (op == ReduceOp::kSum || op == ReduceOp::kMean) {
          ExpectNoWorse(ours, FloatSums(x.Read(), c.axis, op == ReduceOp::kMean), truth, 1e-6);
        } else if (op == ReduceOp::kLogSumExp) {
          // The sum is good to some 1e-6, which its logarithm keeps as an absolute error.
          ExpectNear(ours, truth, 2e-7, 1e-6);
        } else {
          EXPECT_EQ(ours.values, truth.values);
        }
      }
    }
  }
}

// A plain loop loses 1e-3 of this sum; pairwise blocks lose a few 1e-7.
TEST_P(ReduceTest, LongSumsStayExact) {
  for (Shape shape : {Shape{1, 1000003}, Shape{1000003, 1}}) {
    const int axis = shape[0] == 1 ? 1 : 0;
    TestArray x(DType::kF32, shape);
    PlainArray values(shape, 0.1f);
    x.Write(values);
    const double sum = 1000003 * static_cast<double>(0.1f);
    ExpectNear(Reduce(ReduceOp::kSum, axis, x, Memory::kDense), PlainArray(Shape{1, 1}, sum), 4e-7,
               0);
  }
}

TEST_P(ReduceTest, InfinitiesAndNanAreData) {
  const std::vector<std::vector<double>> rows = {{-INFINITY, -INFINITY, -INFINITY},
                                                 {1, INFINITY, 2},
                                                 {3, NAN, 5},
                                                 {NAN, -INFINITY, NAN},
                                                 {88, 89, 90},
                                                 {2, 7, 7},
                                                 {-7, 7, -7},
                                                 {3, -9, 9},
                                                 {-4, -4, 2}};
  const auto n = static_cast<int64_t>(rows.size());
  // Along a dense axis of 40 (more copies of the last element) and along columns.
  for (int axis : {0, 1}) {
    PlainArray values(axis == 1 ? Shape{n, 40} : Shape{40, n});
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t i = 0; i < 40; ++i) {
        const double value =
            rows[static_cast<size_t>(r)][static_cast<size_t>(std::min<int64_t>(i, 2))];
        values.At(axis == 1 ? std::vector<int64_t>{r, i} : std::vector<int64_t>{i, r}) = value;
      }
    }
    TestArray x(DType::kF32, values.shape);
    x.Write(values);
    for (ReduceOp op : kOps) {
      SCOPED_TRACE(static_cast<int>(op));
      ExpectNear(Reduce(op, axis, x, Memory::kDense), Plain(op, axis, x), 1e-6, 0);
    }
  }
}

TEST_P(ReduceTest, AListIsOneLaunchAndChangesNoBit) {
  for (ReduceOp op : kOps) {
    for (int axis : {1, 2}) {
      SCOPED_TRACE(static_cast<int>(op) * 10 + axis);
      // Columns of 9001 rows are three chunks, whose results a second launch combines.
      ExpectSameAloneAndListed(
          GetParam(), CallOf(op), OutOf(op), [&](Shape shape) { return Without(shape, axis); },
          axis, axis == 1 ? 2 : 1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, ReduceTest, ::testing::ValuesIn(AvailableIsas()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace attnd::testing
