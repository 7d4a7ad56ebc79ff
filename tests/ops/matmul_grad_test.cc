// Gradients of Ops::MatMul and the convolutions, on the plain device.
#include "kernels/ops/conv1d.h"
#include "kernels/ops/matmul.h"
#include "tests/ops/gradient_case.h"

namespace attnd::testing {
namespace {

class MatMulGradient : public GradientTest {
 protected:
  // Gradients of a b and its epilogue, for these shapes of a, b and, if given, bias and multiply.
  void Expect(const std::vector<std::vector<Shape>>& shapes, const MatMulParams& params,
              bool has_bias, bool has_multiply) {
    std::vector<Values> inputs;
    for (const auto& list : shapes) inputs.push_back(Random(list, 1 + inputs.size()));
    ExpectGradientsMatch(
        [=](Ops& ops, const std::vector<Tensor>& in) -> std::vector<Tensor> {
          const Tensor bias = has_bias ? in[2] : Tensor();
          return {ops.MatMul(in[0], in[1], params, bias, has_multiply ? in.back() : Tensor())};
        },
        inputs);
  }
};

TEST_F(MatMulGradient, OfBothFactors) {
  Expect({{{2, 3, 4}, {1, 2, 5}}, {{2, 4, 3}, {1, 5, 2}}}, {.alpha = 0.7}, false, false);
}

TEST_F(MatMulGradient, IsSummedOverWhatRepeats) {
  Expect({{{2, 3, 3, 4}}, {{1, 1, 4, 2}}}, {}, false, false);
  Expect({{{1, 1, 3, 4}}, {{2, 3, 4, 2}}}, {}, false, false);
  Expect({{{2, 1, 3, 4}}, {{1, 3, 4, 2}}}, {}, false, false);
}

TEST_F(MatMulGradient, OfBiasActivationAndMultiply) {
  const std::vector<Shape> a = {{2, 3, 4}}, b = {{1, 4, 3}}, result = {{2, 3, 3}};
  Expect({a, b, {{1, 1, 3}}}, {.alpha = 2}, true, false);
  Expect({a, b, {{2, 3, 1}}}, {.activation = ElementOp::kTanh}, true, false);
  Expect({a, b, {{1, 3, 1}}}, {}, false, true);
  Expect({a, b, {{1, 1, 3}}, result}, {.alpha = 0.5, .activation = ElementOp::kGelu}, true, true);
}

TEST_F(MatMulGradient, IsComputedOnlyForWatchedTensors) {
  std::vector<Values> inputs = {Random({{3, 4}}, 1), Random({{4, 2}}, 2)};
  ExpectGradientsMatch(
      [](Ops& ops, const std::vector<Tensor>& in) -> std::vector<Tensor> {
        return {ops.MatMul(in[0], in[1])};
      },
      inputs, {false, true});
}

TEST_F(MatMulGradient, OfConvolutions) {
  std::vector<Values> inputs = {Random({{1, 2, 7, 3}, {2, 1, 4, 3}}, 1),
                                Random({{1, 1, 2, 3, 3}, {1, 1, 2, 3, 3}}, 2),
                                Random({{1, 2, 2}, {1, 1, 2}}, 3)};
  ExpectGradientsMatch(
      [](Ops& ops, const std::vector<Tensor>& in) -> std::vector<Tensor> {
        return {ops.Conv1d(in[0], in[1], in[2], {.stride = 2, .columns = {4, 2}})};
      },
      inputs);
  inputs = {Random({{2, 2, 7, 3}, {1, 3, 2, 2}}, 1), Random({{1, 4}, {3, 4}}, 2)};
  ExpectGradientsMatch(
      [](Ops& ops, const std::vector<Tensor>& in) -> std::vector<Tensor> {
        return {ops.DepthwiseConv1d(in[0], in[1], 1)};
      },
      inputs);
}

TEST(MatMulContract, IsChecked) {
  PlainDevice device;
  BufferPool pool;
  for (const auto& [a, b] : std::vector<std::pair<Shape, Shape>>{
           {{3, 4}, {5, 2}}, {{3, 4}, {1, 4, 2}}, {{2, 3, 4}, {3, 4, 2}}}) {
    Stream stream(device, &pool);
    Ops ops(stream, nullptr);
    EXPECT_TRUE(ops.MatMul(ops.Constant(1, {a}), ops.Constant(1, {b})).empty());
    EXPECT_EQ(ops.status().code(), absl::StatusCode::kInternal);
  }
}

}  // namespace
}  // namespace attnd::testing
