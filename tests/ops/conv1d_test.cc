// Convolutions along the rows: the depthwise kernels against plain loops, and Ops::Conv1d against
// its definition; gradients as adjoints.
#include "kernels/ops/conv1d.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/ops/ops.h"
#include "tests/plain/plain_device.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {
namespace {

struct Size {
  int64_t B, H, N, D, w, left;
};
constexpr Size kSizes[] = {{1, 1, 1, 1, 1, 0},     {2, 3, 63, 5, 4, 3},   {1, 2, 64, 64, 33, 16},
                           {1, 2, 65, 63, 33, 16}, {2, 1, 257, 16, 3, 0}, {1, 1, 3, 17, 9, 4},
                           {1, 2, 0, 8, 3, 1},     {1, 1, 70, 8, 3, 80},  {1, 1, 70, 8, 3, -2},
                           {1, 1, 70, 8, 3, -75}};

class DepthwiseConv : public ::testing::TestWithParam<std::string> {
 protected:
  Device& Cpu(int threads = 2) { return CpuOf(GetParam(), threads); }
};

// The kernel's result, after a check against plain loops.
std::vector<std::byte> Forward(Device& device, const Size& s, DType dtype, Memory memory,
                               bool flipped) {
  const TestArray x = TestArray::Random(1, dtype, {s.B, s.H, s.N, s.D}, memory);
  const TestArray weight = TestArray::Random(2, DType::kF32, {s.H, s.w});
  const TestArray out(dtype, {s.B, s.H, s.N, s.D}, memory);
  const DepthwiseConvProblem p = {x.view(), weight.view(), out.view()};
  const DepthwiseConvArgs args = {.left = s.left, .flipped = flipped, .problems = {p}};
  const int64_t before = device.launches();
  RunOn(device, [&](Stream& stream) { return device.Run(stream, args); });
  EXPECT_EQ(device.launches(), before + 1);
  const std::vector<std::byte> bytes = out.Bytes();
  const PlainArray ours = out.Read();
  PlainRun(args);
  // w roundings of 2^-24 of sums below w; then the rounding of the result, in both.
  const double unit = dtype == DType::kF32 ? 0 : std::ldexp(1, dtype == DType::kF16 ? -10 : -7);
  const double w = static_cast<double>(s.w);
  ExpectNear(ours, out.Read(), unit, std::ldexp(w * w, -24));
  EXPECT_TRUE(out.GuardsIntact());
  return bytes;
}

TEST_P(DepthwiseConv, IsItsDefinition) {
  for (const Size& s : kSizes) {
    SCOPED_TRACE(::testing::Message() << "N " << s.N << " D " << s.D << " left " << s.left);
    for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (Memory memory : {Memory::kDense, Memory::kPitched}) {
        for (bool flipped : {false, true}) {
          const auto two = Forward(Cpu(2), s, dtype, memory, flipped);
          EXPECT_EQ(two, Forward(Cpu(1), s, dtype, memory, flipped));
        }
      }
    }
  }
}

TEST_P(DepthwiseConv, GradientOfTheWeightIsItsDefinition) {
  for (const Size& s : kSizes) {
    SCOPED_TRACE(::testing::Message() << "N " << s.N << " D " << s.D << " left " << s.left);
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      const TestArray x = TestArray::Random(1, dtype, {s.B, s.H, s.N, s.D}, Memory::kPitched);
      const TestArray dout = TestArray::Random(2, DType::kF32, {s.B, s.H, s.N, s.D});
      const TestArray dweight(DType::kF32, {s.H, s.w});
      const DepthwiseConvGradProblem p = {x.view(), dout.view(), dweight.view()};
      const DepthwiseConvGradArgs args = {.left = s.left, .problems = {p}};
      std::vector<std::byte> bytes[2];
      for (int threads : {1, 2}) {
        Device& device = Cpu(threads);
        RunOn(device, [&](Stream& stream) { return device.Run(stream, args); });
        bytes[threads - 1] = dweight.Bytes();
      }
      EXPECT_EQ(bytes[0], bytes[1]);
      const PlainArray ours = dweight.Read();
      PlainRun(args);
      // A lane's sum over a block of 64 rows is float. Rounding a random walk of m steps of 1/3
      // errs by u / sqrt(3) m / 3 / sqrt(2) in the mean square, over all lanes and blocks by a
      // seventh of this.
      const double terms = static_cast<double>(s.B * s.N * s.D);
      const double m = std::min(terms, 64.0 * static_cast<double>(s.D) / 4);
      ExpectNear(ours, dweight.Read(), 0, std::ldexp(1 + std::sqrt(m * terms), -24));
      EXPECT_TRUE(dweight.GuardsIntact());
    }
  }
}

TEST_P(DepthwiseConv, ListsHaveTheBitsOfTheirProblemsAndNanStaysInItsWindow) {
  TestArray x = TestArray::Random(1, DType::kF32, {2, 2, 130, 20});
  PlainArray values = x.Read();
  values.At({1, 0, 50, 3}) = NAN;
  x.Write(values);
  const TestArray other = TestArray::Random(2, DType::kF32, {1, 2, 9, 64});
  TestArray weight = TestArray::Random(3, DType::kF32, {1, 5});
  View repeated = weight.view();
  repeated.shape.dims[0] = 2, repeated.stride[0] = 0;
  const TestArray out[2] = {TestArray(DType::kF32, {2, 2, 130, 20}),
                            TestArray(DType::kF32, {1, 2, 9, 64})};
  const DepthwiseConvProblem list[2] = {{x.view(), repeated, out[0].view()},
                                        {other.view(), repeated, out[1].view()}};
  std::vector<std::byte> alone[2];
  for (int i : {0, 1}) {
    RunOn(Cpu(), [&](Stream& stream) {
      return Cpu().Run(stream, DepthwiseConvArgs{.left = 2, .problems = {list[i]}});
    });
    alone[i] = out[i].Bytes();
  }
  RunOn(Cpu(), [&](Stream& stream) {
    return Cpu().Run(stream, DepthwiseConvArgs{.left = 2, .problems = {list[0], list[1]}});
  });
  for (int i : {0, 1}) EXPECT_EQ(out[i].Bytes(), alone[i]);
  int64_t nans = 0;
  for (double y : out[0].Read().values) nans += std::isnan(y) ? 1 : 0;
  EXPECT_EQ(nans, 5);
}

INSTANTIATE_TEST_SUITE_P(Isas, DepthwiseConv, ::testing::ValuesIn(AvailableIsas()),
                         [](const auto& info) { return info.param; });

// Tensors of small whole numbers, so that sums are exact.
class Conv : public ::testing::Test {
 protected:
  Conv() : stream_(device_, &pool_), ops_(stream_, &tape_) {}

  Tensor Numbers(const std::vector<Shape>& shapes) {
    std::vector<std::vector<float>> values;
    for (const Shape& shape : shapes) {
      std::vector<float>& list = values.emplace_back();
      for (int64_t i = 0; i < shape.size(); ++i)
        list.push_back(static_cast<float>(next_++ % 7 - 3));
    }
    return ops_.FromHost(shapes, values);
  }
  static double Dot(const Tensor& a, const Tensor& b) {
    double sum = 0;
    for (size_t p = 0; p < a.size(); ++p) {
      const PlainArray x = ReadView(a[p]), y = ReadView(b[p]);
      for (size_t i = 0; i < x.values.size(); ++i) sum += x.values[i] * y.values[i];
    }
    return sum;
  }
  // For a result linear in each input: <y, g> = <input, its gradient>.
  void ExpectAdjoint(const Tensor& y, const std::vector<Tensor>& inputs, double constant = 0) {
    ASSERT_TRUE(ops_.status().ok()) << ops_.status().message();
    const Tensor g = Numbers(ShapesOf(y));
    const double left = Dot(y, g) - constant;
    const std::vector<Tensor> back = tape_.Replay(ops_, {&y, 1}, {&g, 1}, inputs);
    ASSERT_TRUE(ops_.status().ok()) << ops_.status().message();
    for (size_t i = 0; i < inputs.size(); ++i) {
      ASSERT_EQ(ShapesOf(back[i]), ShapesOf(inputs[i]));
      EXPECT_EQ(Dot(inputs[i], back[i]), left) << "input " << i;
    }
  }

  PlainDevice device_;
  BufferPool pool_;
  Stream stream_;
  Tape tape_;
  Ops ops_;
  int64_t next_ = 0;
};

// out[c, o] = sum_{i, t} weight[o, i, t] x[c stride + t dilation, i], rows outside 0.
void ExpectConvolution(const Tensor& x, const Tensor& weight, const Tensor& y, int64_t stride,
                       int64_t dilation) {
  for (size_t p = 0; p < x.size(); ++p) {
    const PlainArray in = ReadView(x[p]), w = ReadView(weight[p]), out = ReadView(y[p]);
    ForEachIndex(out.shape, [&](const std::vector<int64_t>& at) {
      double sum = 0;
      for (int64_t t = 0; t < w.shape[4]; ++t) {
        const int64_t row = at[2] * stride + t * dilation;
        for (int64_t i = 0; i < w.shape[3] && row < in.shape[2]; ++i) {
          sum += w.At({at[0], at[1], at[3], i, t}) * in.At({at[0], at[1], row, i});
        }
      }
      EXPECT_EQ(out.At(at), sum);
    });
  }
}

TEST_F(Conv, ReadsNoRowOutsideUnlessMoreColumnsAreGiven) {
  for (int64_t dilation : {1, 2}) {
    const Tensor x = Numbers({{2, 3, 11, 4}, {2, 3, 5, 4}, {2, 3, 1, 4}});
    const Tensor weight = Numbers({{1, 3, 5, 4, 3}, {2, 1, 5, 4, 3}, {1, 1, 5, 4, 3}});
    const Tensor inside = ops_.Conv1d(x, weight, {}, {.stride = 2, .dilation = dilation});
    ASSERT_TRUE(ops_.status().ok()) << ops_.status().message();
    EXPECT_EQ(inside[0].shape, (Shape{2, 3, dilation == 1 ? 5 : 4, 5}));
    EXPECT_EQ(inside[1].shape, (Shape{2, 3, dilation == 1 ? 2 : 1, 5}));
    EXPECT_EQ(inside[2].shape, (Shape{2, 3, 0, 5}));
    ExpectConvolution(x, weight, inside, 2, dilation);
    const Tensor more =
        ops_.Conv1d(x, weight, {}, {.stride = 2, .dilation = dilation, .columns = {6, 3, 1}});
    ASSERT_TRUE(ops_.status().ok()) << ops_.status().message();
    EXPECT_EQ(more[0].shape, (Shape{2, 3, 6, 5}));
    ExpectConvolution(x, weight, more, 2, dilation);
  }
}

TEST_F(Conv, GradientsAreAdjoint) {
  const Tensor x = Numbers({{2, 3, 11, 4}, {1, 1, 5, 4}});
  const Tensor weight = Numbers({{1, 3, 5, 4, 3}, {1, 1, 5, 4, 3}});
  tape_.Watch(x);
  tape_.Watch(weight);
  const Tensor y = ops_.Conv1d(x, weight, {}, {.stride = 2, .dilation = 2, .columns = {5}});
  ExpectAdjoint(y, {x, weight});
}

TEST_F(Conv, DepthwiseGradientsAreAdjoint) {
  const Tensor x = Numbers({{2, 3, 11, 4}, {1, 2, 3, 4}});
  const Tensor weight = Numbers({{3, 5}, {2, 5}});
  tape_.Watch(x);
  tape_.Watch(weight);
  ExpectAdjoint(ops_.DepthwiseConv1d(x, weight, 2), {x, weight});
}

TEST_F(Conv, BrokenContractsAreRefused) {
  const Tensor x = Numbers({{2, 3, 11, 4}});
  ops_.Conv1d(x, Numbers({{1, 3, 5, 6, 3}}), {}, {});
  EXPECT_EQ(ops_.status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace attnd::testing
