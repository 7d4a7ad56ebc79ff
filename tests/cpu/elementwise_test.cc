// elementwise: values of every operation, every way that operands can lie in memory.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/plain/test_array.h"

namespace attnd::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// Units in the last place of float32 at x.
double Ulp(double x) { return std::ldexp(1.0, std::max(std::ilogb(std::fabs(x)), -126) - 23); }

// float32 of every exponent and sign, dense where functions are interesting, and the special ones.
std::vector<float> Numbers() {
  std::vector<float> numbers = {
      0.0f,       -0.0f,         INFINITY,       -INFINITY,      NAN, 1.0f, -1.0f, 6.0f, 88.722839f,
      -87.33654f, 3.4028235e38f, -3.4028235e38f, 1.17549435e-38f};
  for (float x = 1.2e-38f; x < 3.4e38f; x *= 1.0173f) {
    numbers.push_back(x);
    numbers.push_back(-x);
  }
  for (int i = 0; i <= 60000; ++i) numbers.push_back(-30.0f + 0.001f * static_cast<float>(i));
  for (int i = 0; i <= 20000; ++i) numbers.push_back(-105.0f + 0.0105f * static_cast<float>(i));
  // Next to multiples of pi / 2 sine and cosine are small.
  for (int k = 1; k < 2000; ++k) numbers.push_back(static_cast<float>(k * M_PI / 2));
  for (int k = 1; k < 100; ++k) numbers.push_back(static_cast<float>(k * 7001 * M_PI / 2));
  return numbers;
}

TestArray ArrayOf(const std::vector<float>& numbers) {
  TestArray array(DType::kF32, Shape{static_cast<int64_t>(numbers.size())});
  PlainArray plain(array.view().shape);
  std::copy(numbers.begin(), numbers.end(), plain.values.begin());
  array.Write(plain);
  return array;
}

// Runs one problem and the plain one; `out` is float32 and dense.
struct Both {
  TestArray ours, plain;
};
Both Compute(Device& device, ElementwiseArgs args, ElementwiseProblem p, const Shape& shape) {
  Both both{TestArray(DType::kF32, shape), TestArray(DType::kF32, shape)};
  p.out = both.ours.view();
  args.problems = {p};
  RunOn(device, [&](Stream& stream) { return device.Run(stream, args); });
  args.problems[0].out = both.plain.view();
  PlainRun(args);
  EXPECT_TRUE(both.ours.GuardsIntact());
  return both;
}

// Expects 2 units in the last place, or `absolute` if that is more. Results below the smallest
// normal number may be 0.
void ExpectUlps(const Both& both, const std::vector<float>& at, double absolute,
                const std::string& what) {
  const PlainArray ours = both.ours.Read(), plain = both.plain.Read();
  int reported = 0;
  for (size_t i = 0; i < at.size() && reported < 3; ++i) {
    const double a = ours.values[i], b = plain.values[i];
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    if (std::fabs(b) < 1.1754944e-38 && std::fabs(a) < 1.1754944e-38) continue;
    // The plain result is rounded to float32: one half more.
    const double bound = std::max(2.5 * Ulp(b), absolute);
    if (std::isfinite(a) && std::isfinite(b) && std::fabs(a - b) <= bound) continue;
    ADD_FAILURE() << what << " of " << at[i] << " is " << a << ", should be " << b << ": "
                  << std::fabs(a - b) / Ulp(b) << " ulp";
    ++reported;
  }
}

class ElementwiseTest : public ::testing::TestWithParam<std::string> {
 protected:
  Device& device() { return CpuOf(GetParam(), 2); }
};

TEST_P(ElementwiseTest, FunctionsAreGoodToTwoUlps) {
  const std::vector<float> numbers = Numbers();
  const TestArray x = ArrayOf(numbers);
  for (int i = 0; i < static_cast<int>(ElementOp::kAdd); ++i) {
    const auto op = static_cast<ElementOp>(i);
    const ElementwiseArgs args = {.op = op, .alpha = 1.75f, .beta = 0};
    ExpectUlps(Compute(device(), args, {.a = x.view()}, x.view().shape), numbers, 0,
               "operation " + std::to_string(i));
  }
}

TEST_P(ElementwiseTest, DerivativesAreGoodToTwoUlps) {
  const std::vector<float> numbers = Numbers();
  const TestArray x = ArrayOf(numbers);
  const TestArray g = ArrayOf(std::vector<float>(numbers.size(), 0.75f));
  for (int i = 0; i < static_cast<int>(ElementOp::kAdd); ++i) {
    const auto op = static_cast<ElementOp>(i);
    const bool has_zero = op >= ElementOp::kSilu && op <= ElementOp::kGeluTanh;
    const ElementwiseArgs args = {.op = op, .derivative = true, .alpha = 1.75f};
    ExpectUlps(Compute(device(), args, {.a = g.view(), .b = x.view()}, x.view().shape), numbers,
               has_zero ? 1e-9 : 0, "derivative of operation " + std::to_string(i));
  }
}

TEST_P(ElementwiseTest, FlatFunctionsIgnoreTheirGradient) {
  const std::vector<float> numbers = {-1, 0, 7, -INFINITY};
  const TestArray x = ArrayOf(numbers), g = ArrayOf(std::vector<float>(4, NAN));
  const Both both = Compute(device(), {.op = ElementOp::kRelu6, .derivative = true},
                            {.a = g.view(), .b = x.view()}, x.view().shape);
  EXPECT_EQ(both.ours.Read().values, std::vector<double>(4, 0));
}

TEST_P(ElementwiseTest, TwoOperands) {
  const std::vector<double> special = {0, 1, -1, 2.5, kInf, -kInf, NAN, 1e-30, -87, 88, 1e30};
  std::vector<float> a, b;
  for (double x : special) {
    for (double y : special) {
      a.push_back(static_cast<float>(x));
      b.push_back(static_cast<float>(y));
    }
  }
  for (int i = 0; i < 3000; ++i) {
    a.push_back(static_cast<float>(20 * std::sin(0.7 * i)));
    b.push_back(i % 5 == 0 ? a.back() : static_cast<float>(20 * std::sin(1.3 * i + 1)));
  }
  const TestArray x = ArrayOf(a), y = ArrayOf(b);
  for (int i = static_cast<int>(ElementOp::kAdd); i < static_cast<int>(ElementOp::kSelect); ++i) {
    const auto op = static_cast<ElementOp>(i);
    ExpectUlps(Compute(device(), {.op = op}, {.a = x.view(), .b = y.view()}, x.view().shape), a,
               op == ElementOp::kLogAddExp ? 1e-9 : 0, "operation " + std::to_string(i));
  }
}

TEST_P(ElementwiseTest, SelectKeepsNanOut) {
  const TestArray mask = ArrayOf({1, 0, NAN, -2}), x = ArrayOf({1, NAN, 3, 4}),
                  y = ArrayOf({NAN, 6, NAN, NAN});
  const Both both = Compute(device(), {.op = ElementOp::kSelect},
                            {.a = mask.view(), .b = x.view(), .c = y.view()}, x.view().shape);
  EXPECT_EQ(both.ours.Read().values, (std::vector<double>{1, 6, 3, 4}));
}

// Without a fused multiply-add both operations round.
TEST_P(ElementwiseTest, AffineIsGoodToTwoUlpsOfItsLargestTerm) {
  const std::vector<float> numbers = Numbers();
  const TestArray x = ArrayOf(numbers);
  const ElementwiseArgs args = {.op = ElementOp::kAffine, .alpha = 1.1f, .beta = -3.3f};
  const Both both = Compute(device(), args, {.a = x.view()}, x.view().shape);
  const PlainArray ours = both.ours.Read(), plain = both.plain.Read();
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (!std::isfinite(plain.values[i])) continue;
    const double largest = std::max(std::fabs(1.1 * numbers[i]), 3.3);
    ASSERT_LE(std::fabs(ours.values[i] - plain.values[i]), 2 * Ulp(largest)) << numbers[i];
  }
}

// Every size, dtype, stride and broadcast; `out` too.
struct Case {
  Shape a, b, out;
};
const Case kCases[] = {
    {{0}, {0}, {0}},
    {{2, 0, 3}, {1, 1, 3}, {2, 0, 3}},
    {{1}, {1}, {1}},
    {{63}, {63}, {63}},
    {{65}, {1}, {65}},
    {{64, 7}, {1, 7}, {64, 7}},
    {{3, 67, 5}, {3, 67, 1}, {3, 67, 5}},
    {{2, 3, 64, 65}, {1, 3, 1, 65}, {2, 3, 64, 65}},
    {{2, 1, 31, 1}, {1, 3, 1, 33}, {2, 3, 31, 33}},
    {{1, 1, 4099}, {1, 1, 4099}, {1, 1, 4099}},
    {{70, 90}, {70, 90}, {70, 90}},
    {{2, 1, 2, 3, 1, 5}, {1, 2, 1, 3, 2, 1}, {2, 2, 2, 3, 2, 5}},
};

TEST_P(ElementwiseTest, AnyStridesDtypesAndBroadcasts) {
  const Memory memories[] = {Memory::kDense, Memory::kPitched, Memory::kTransposed};
  const DType dtypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kI32};
  unsigned seed = 0;
  for (const Case& c : kCases) {
    for (Memory in : memories) {
      for (Memory out : memories) {
        for (DType dtype : dtypes) {
          seed += 1;
          const DType to = dtypes[seed % 3];
          const TestArray a = TestArray::Random(2 * seed, dtype, c.a, in, -90, 90);
          const TestArray b =
              TestArray::Random(2 * seed + 1, dtypes[seed % 4], c.b, memories[seed % 3]);
          const TestArray ours(to, c.out, out), plain(to, c.out, out);
          ElementwiseProblem p = {.a = a.view(), .b = b.view(), .out = ours.view()};
          ElementwiseArgs args = {.op = ElementOp::kSubtract, .problems = {p}};
          RunOn(device(), [&](Stream& stream) { return device().Run(stream, args); });
          args.problems[0].out = plain.view();
          PlainRun(args);
          EXPECT_TRUE(ours.GuardsIntact());
          // Two roundings to a half may differ by one of its units where the float32 is a tie.
          const double unit = to == DType::kF32 ? 1e-7 : to == DType::kF16 ? 1e-3 : 8e-3;
          ExpectNear(ours.Read(), plain.Read(), unit, 1e-6);
        }
      }
    }
  }
}

TEST_P(ElementwiseTest, CopiesIntegersBitByBit) {
  for (Memory memory : {Memory::kDense, Memory::kPitched, Memory::kTransposed}) {
    TestArray a(DType::kI32, Shape{70, 67}, memory), ours(DType::kI32, Shape{70, 67});
    PlainArray values(a.view().shape);
    // Small ones would be denormals, large ones have no float32.
    for (size_t i = 0; i < values.values.size(); ++i) {
      values.values[i] =
          i % 2 == 0 ? static_cast<double>(i) : -2147480000.0 + static_cast<double>(i);
    }
    a.Write(values);
    const ElementwiseProblem p = {.a = a.view(), .out = ours.view()};
    RunOn(device(), [&](Stream& stream) {
      return device().Run(stream, ElementwiseArgs{.op = ElementOp::kCopy, .problems = {p}});
    });
    EXPECT_EQ(ours.Read().values, values.values);
    EXPECT_TRUE(ours.GuardsIntact());
  }
}

TEST_P(ElementwiseTest, OutputMayBeAnOperand) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (Memory memory : {Memory::kDense, Memory::kPitched, Memory::kTransposed}) {
      const TestArray a = TestArray::Random(1, dtype, Shape{70, 67}, memory);
      const TestArray b = TestArray::Random(2, DType::kF32, Shape{70, 67});
      const TestArray apart(dtype, Shape{70, 67});
      ElementwiseProblem p = {a.view(), b.view(), {}, apart.view()};
      ElementwiseArgs args = {.op = ElementOp::kMultiply, .problems = {p}};
      const auto run = [&](Stream& stream) { return device().Run(stream, args); };
      RunOn(device(), run);
      args.problems[0].out = a.view();
      RunOn(device(), run);
      EXPECT_EQ(a.Bytes(), apart.Bytes());
    }
  }
}

TEST_P(ElementwiseTest, AListIsOneLaunchAndChangesNoBit) {
  std::vector<TestArray> a, b, apart, listed, serial;
  std::vector<ElementwiseProblem> problems;
  for (int64_t n : {0, 1, 63, 64, 65, 701, 3001}) {
    const auto seed = static_cast<unsigned>(n);
    a.push_back(TestArray::Random(seed, DType::kF32, Shape{3, n, 17}, Memory::kTransposed));
    b.push_back(TestArray::Random(seed + 1, DType::kF16, Shape{1, n, 1}));
    for (auto* out : {&apart, &listed, &serial}) out->emplace_back(DType::kF32, Shape{3, n, 17});
    problems.push_back({.a = a.back().view(), .b = b.back().view()});
  }
  const auto run = [&](Device& on, std::vector<TestArray>& out, size_t first, size_t count) {
    for (size_t p = first; p < first + count; ++p) problems[p].out = out[p].view();
    const ElementwiseArgs args = {
        .op = ElementOp::kLogAddExp,
        .problems = {problems.begin() + first, problems.begin() + first + count}};
    const int64_t before = on.launches();
    RunOn(on, [&](Stream& stream) { return on.Run(stream, args); });
    EXPECT_EQ(on.launches(), before + 1);
  };
  for (size_t p = 0; p < problems.size(); ++p) run(device(), apart, p, 1);
  run(device(), listed, 0, problems.size());
  run(CpuOf(GetParam(), 1), serial, 0, problems.size());
  for (size_t p = 0; p < problems.size(); ++p) {
    EXPECT_EQ(listed[p].Bytes(), apart[p].Bytes());
    EXPECT_EQ(serial[p].Bytes(), apart[p].Bytes());
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, ElementwiseTest, ::testing::ValuesIn(AvailableIsas()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace attnd::testing
