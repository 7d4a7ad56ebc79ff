// The real part of the 2-D transform against the double sum of its definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "kernels/cpu/fft/fft_tables.h"
#include "kernels/ops/ops.h"
#include "tests/plain/plain_fft.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {
namespace {

struct Case {
  Shape shape;
  DType from = DType::kF32, to = DType::kF32;
  Memory memory = Memory::kDense;
};

// Every radix, lengths of one level and two, convolutions, odd and even, more and fewer columns
// than an item takes.
std::vector<Case> Cases() {
  std::vector<Case> cases = {{{0, 5}}, {{5, 0}}, {{2, 0, 3, 4}}};
  for (int64_t N : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 15, 16, 47, 53}) {
    for (int64_t M : {1, 2, 3, 4, 5, 8, 13, 33, 59}) cases.push_back({{N, M}});
  }
  for (Shape shape :
       {Shape{63, 65}, Shape{64, 64}, Shape{65, 63}, Shape{127, 128}, Shape{129, 127},
        Shape{1, 768}, Shape{300, 7}, Shape{7, 300}, Shape{272, 31}, Shape{1024, 3}, Shape{2, 1024},
        Shape{1009, 4}, Shape{3, 1009}, Shape{1458, 2}, Shape{2, 3, 20, 34}}) {
    cases.push_back({shape});
  }
  for (Memory memory : {Memory::kPitched, Memory::kTransposed}) {
    for (DType from : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (DType to : {DType::kF32, DType::kF16, DType::kBF16}) {
        cases.push_back({{2, 2, 37, 70}, from, to, memory});
      }
    }
  }
  cases.push_back({{37, 70}, DType::kBF16, DType::kBF16});
  return cases;
}

struct Arrays {
  Case of;
  TestArray x, out;
  PlainArray truth, plain;

  Arrays(const Case& c, unsigned seed)
      : of(c),
        x(TestArray::Random(seed, c.from, c.shape, c.memory)),
        out(c.to, c.shape, c.memory),
        truth(PlainFft<double>(x.Read())) {
    // Rounded once to the dtype of the result.
    TestArray rounded(c.to, c.shape);
    rounded.Write(PlainFft<float>(x.Read()));
    plain = rounded.Read();
  }
  FftProblem problem() const { return {x.view(), out.view()}; }
  // Where the plain sum is exact: a quarter of a unit of float32 of a typical result for every
  // doubling of the length.
  double slack() const {
    const double size = static_cast<double>(std::max<int64_t>(of.shape.size(), 1));
    return 0x1p-25 * std::sqrt(size) * (std::log2(size) + 1);
  }
};

class FftTest : public ::testing::TestWithParam<std::string> {
 protected:
  void Run(const std::vector<FftProblem>& problems, int threads) {
    Device& device = CpuOf(GetParam(), threads);
    const int64_t before = device.launches();
    RunOn(device,
          [&](Stream& stream) { return device.Run(stream, FftArgs{.problems = problems}); });
    // The processor counts rows and columns.
    EXPECT_EQ(device.launches() - before, device.info().name == "cpu" ? 2 : 1);
  }
};

TEST_P(FftTest, IsTheDefinition) {
  std::vector<Arrays> list;
  std::vector<FftProblem> problems;
  for (const Case& c : Cases()) list.emplace_back(c, static_cast<unsigned>(list.size()));
  for (const Arrays& a : list) problems.push_back(a.problem());
  // When all run in one list
  Run(problems, 2);
  std::vector<std::vector<std::byte>> bytes;
  for (Arrays& a : list) {
    SCOPED_TRACE(ToString(a.of.shape));
    ExpectNoWorse(a.out.Read(), a.plain, a.truth, a.slack());
    EXPECT_TRUE(a.out.GuardsIntact());
    bytes.push_back(a.out.Bytes());
    a.out.Write(PlainArray(a.of.shape, 77));
  }
  // Then one thread and every problem alone give the same bits.
  Run(problems, 1);
  for (size_t i = 0; i < list.size(); ++i) {
    EXPECT_TRUE(list[i].out.Bytes() == bytes[i]) << ToString(list[i].of.shape);
    list[i].out.Write(PlainArray(list[i].of.shape, 77));
    Run({problems[i]}, 2);
    EXPECT_TRUE(list[i].out.Bytes() == bytes[i]) << ToString(list[i].of.shape);
  }
}

TEST_P(FftTest, LongTransforms) {
  // Two levels of 64, a convolution of two levels, levels that differ, and a prime whose square
  // does not fit 31 bits; against the sum for some of the results.
  for (Shape shape : {Shape{4096, 40}, Shape{4093, 6}, Shape{6, 4093}, Shape{3000, 20},
                      Shape{46349, 2}, Shape{2, 46349}}) {
    const int64_t N = shape[0], M = shape[1];
    const TestArray x = TestArray::Random(1, DType::kF32, shape);
    const TestArray out(DType::kF32, shape);
    const FftProblem problem = {x.view(), out.view()};
    Run({problem}, 2);
    for (int64_t e = 0; e < 40; ++e) {
      const int64_t n = e * 977 % N, m = e * 13 % M;
      double sum = 0;
      for (int64_t a = 0; a < N; ++a) {
        for (int64_t b = 0; b < M; ++b) {
          const double turns =
              static_cast<double>(n * a % N) / N + static_cast<double>(m * b % M) / M;
          sum += x.view().As<float>()[a * M + b] * std::cos(2 * M_PI * turns);
        }
      }
      // Results are of size sqrt(N M / 3), float32 and 30 roundings of 6e-8 away.
      ASSERT_NEAR(out.view().As<float>()[n * M + m], sum, 1e-6 * std::sqrt(N * M / 3.0))
          << ToString(shape) << " " << n << " " << m;
    }
  }
}

TEST_P(FftTest, OneElementThatIsNotFiniteReachesAll) {
  for (double bad :
       {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()}) {
    TestArray x = TestArray::Random(1, DType::kF32, {2, 12, 53});
    PlainArray values = x.Read();
    values.values[12 * 53 + 100] = bad;
    x.Write(values);
    const TestArray out(DType::kF32, {2, 12, 53});
    const FftProblem problem = {x.view(), out.view()};
    Run({problem}, 1);
    const PlainArray read = out.Read();
    for (size_t i = 0; i < read.values.size(); ++i) {
      EXPECT_EQ(std::isfinite(read.values[i]), i < 12 * 53) << i;
    }
  }
}

TEST_P(FftTest, GradientIsTheSameTransform) {
  const Shape shape = {1, 2, 5, 6};
  const TestArray x = TestArray::Random(1, DType::kF32, shape);
  const TestArray weight = TestArray::Random(2, DType::kF32, shape);
  const auto tensor = [](const TestArray& a) {
    return Tensor({a.view()}, std::vector<std::shared_ptr<Buffer>>(1));
  };
  BufferPool pool(0, /*poison=*/true);
  Stream stream(CpuOf(GetParam(), 1), &pool);
  Tape tape;
  Ops ops(stream, &tape);
  const std::vector<Tensor> in = {tensor(x)}, grads = {tensor(weight)};
  tape.Watch(in[0]);
  const std::vector<Tensor> out = {ops.RealFft2(in[0])};
  const std::vector<Tensor> back = tape.Replay(ops, out, grads, in);
  ASSERT_TRUE(ops.status().ok()) << ops.status();
  // The loss sum(weight * out) is linear in x: a difference of any step is exact.
  const PlainArray at = x.Read();
  const auto loss = [&](const PlainArray& values) {
    const PlainArray result = PlainFft<double>(values);
    double sum = 0;
    for (size_t i = 0; i < result.values.size(); ++i)
      sum += weight.Read().values[i] * result.values[i];
    return sum;
  };
  for (size_t e = 0; e < at.values.size(); ++e) {
    PlainArray moved = at;
    moved.values[e] += 1;
    EXPECT_NEAR(ReadView(back[0][0]).values[e], loss(moved) - loss(at), 1e-5);
  }
}

TEST(FftTablesTest, LengthsAreCutIntoLevels) {
  EXPECT_EQ(SizesOf(256).n2, 1);
  EXPECT_EQ(SizesOf(4096).n1, 64);
  EXPECT_EQ(SizesOf(768).n1 * SizesOf(768).n2, 768);
  EXPECT_FALSE(SizesOf(47 * 43).is_convolution());
  EXPECT_EQ(SizesOf(53).smooth, 120);
  EXPECT_EQ(SizesOf(4093).smooth, 8192);
  for (int64_t n = 1; n < 3000; ++n) {
    const FftSizes sizes = SizesOf(n);
    ASSERT_EQ(sizes.n1 * sizes.n2, sizes.smooth);
    ASSERT_TRUE(sizes.smooth == n || sizes.smooth >= 2 * n - 1);
    ASSERT_GE(2 * sizes.n1, sizes.n2);
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, FftTest, ::testing::ValuesIn(AvailableIsas()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace attnd::testing
