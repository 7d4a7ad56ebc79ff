// Gradient rules of elementwise, reduce, softmax, cumulative, layer_norm and pool.
#include "tests/ops/gradient_case.h"
#include "tests/plain/plain.h"

namespace attnd::testing {
namespace {

using In = const std::vector<Tensor>&;

// Ragged, with a length of 0.
std::vector<Shape> Ragged() { return {{2, 5, 3}, {1, 1, 4}, {1, 0, 2}}; }

class AlongGradTest : public GradientTest {
 protected:
  // The formula of one input of ragged shapes.
  void ExpectMatch(const std::function<Tensor(Ops&, const Tensor&)>& f, unsigned seed = 1) {
    ExpectGradientsMatch([&](Ops& ops, In in) { return std::vector<Tensor>{f(ops, in[0])}; },
                         {Spread(Ragged(), seed)});
  }

  // Values whose differences, and distances from kinks, exceed the step of finite differences.
  static Values Spread(const std::vector<Shape>& shapes, unsigned seed, float offset = 0) {
    Values values = Random(shapes, seed);
    for (auto& list : values.data) {
      for (size_t i = 0; i < list.size(); ++i) {
        list[i] =
            (list[i] < 0 ? -1.0f : 1.0f) * (0.1f + offset + 0.06f * static_cast<float>(7 * i % 31));
      }
    }
    return values;
  }
};

TEST_F(AlongGradTest, FunctionsOfOneOperand) {
  for (int i = 0; i < static_cast<int>(ElementOp::kAdd); ++i) {
    const auto op = static_cast<ElementOp>(i);
    SCOPED_TRACE(i);
    const bool positive = op == ElementOp::kSqrt || op == ElementOp::kLog;
    ExpectMatch([&](Ops& ops, const Tensor& x) {
      const Tensor from = positive ? ops.Affine(ops.Apply(ElementOp::kSquare, x), 1, 0.5) : x;
      if (op == ElementOp::kAffine) return ops.Affine(from, 1.5, -2);
      if (op != ElementOp::kReciprocal) return ops.Apply(op, from);
      return ops.Apply(op, ops.Affine(from, 1, 4));  // far from 1 / 0
    });
  }
}

// It has no gradient: places, not values.
TEST_F(AlongGradTest, ArgMaxIsThatOfTheLastAxis) {
  Stream stream(device_, &pool_);
  Tape tape;
  Ops ops(stream, &tape);
  const Tensor x = ops.FromHost({{2, 3}, {1, 4}},
                                std::vector<std::vector<float>>{{1, 5, 2, 9, 0, 9}, {0, 1, 2, 3}});
  tape.Watch(x);
  const Tensor places = ops.ArgMax(x);
  ASSERT_TRUE(ops.status().ok()) << ops.status();
  EXPECT_EQ(ShapesOf(places), (std::vector<Shape>{{2, 1}, {1, 1}}));
  EXPECT_EQ(ReadView(places[0]).values, (std::vector<double>{1, 0}));
  EXPECT_EQ(ReadView(places[1]).values, (std::vector<double>{3}));
}

TEST_F(AlongGradTest, FunctionsOfTwoOperandsThatBroadcast) {
  for (ElementOp op :
       {ElementOp::kAdd, ElementOp::kSubtract, ElementOp::kMultiply, ElementOp::kDivide,
        ElementOp::kSafeDivide, ElementOp::kMaximum, ElementOp::kMinimum, ElementOp::kLogAddExp}) {
    SCOPED_TRACE(static_cast<int>(op));
    const bool divides = op == ElementOp::kDivide || op == ElementOp::kSafeDivide;
    ExpectGradientsMatch(
        [&](Ops& ops, In in) {
          const Tensor b = divides ? ops.Affine(in[1], 1, 4) : in[1];
          return std::vector<Tensor>{ops.Apply(op, in[0], b)};
        },
        {Spread({{2, 1, 3}, {1, 4, 1}}, 1), Spread({{1, 5, 3}, {2, 1, 3}}, 2, /*offset=*/0.03f)});
  }
}

TEST_F(AlongGradTest, TiesShareAMaximumAndZeroDividesNothing) {
  Values a{{{3}}, {{1, 2, 0}}}, b{{{3}}, {{1, 1, 0}}};
  const auto maximum = Gradients(
      [](Ops& ops, In in) {
        return std::vector<Tensor>{ops.Apply(ElementOp::kMaximum, in[0], in[1])};
      },
      inputs_ = {a, b}, {true, true});
  const float w0 = static_cast<float>(Weight(0, 0, 0)), w1 = static_cast<float>(Weight(0, 0, 1));
  EXPECT_FLOAT_EQ(maximum[0][0].As<float>()[0], w0 / 2);
  EXPECT_FLOAT_EQ(maximum[1][0].As<float>()[0], w0 / 2);
  EXPECT_FLOAT_EQ(maximum[0][0].As<float>()[1], w1);
  EXPECT_FLOAT_EQ(maximum[1][0].As<float>()[1], 0);
  const auto quotient = Gradients(
      [](Ops& ops, In in) {
        return std::vector<Tensor>{ops.Apply(ElementOp::kSafeDivide, in[0], in[1])};
      },
      inputs_ = {a, b}, {true, true});
  EXPECT_EQ(quotient[0][0].As<float>()[2], 0);
  EXPECT_EQ(quotient[1][0].As<float>()[2], 0);
}

TEST_F(AlongGradTest, LogAddExpOfNothing) {
  Values a{{{2}}, {{-INFINITY, -INFINITY}}}, b{{{2}}, {{-INFINITY, 1}}};
  const auto grads = Gradients(
      [](Ops& ops, In in) {
        return std::vector<Tensor>{ops.Apply(ElementOp::kLogAddExp, in[0], in[1])};
      },
      inputs_ = {a, b}, {true, true});
  EXPECT_EQ(grads[0][0].As<float>()[0], 0);
  EXPECT_EQ(grads[0][0].As<float>()[1], 0);
  EXPECT_EQ(grads[1][0].As<float>()[0], 0);
  EXPECT_FLOAT_EQ(grads[1][0].As<float>()[1], static_cast<float>(Weight(0, 0, 1)));
}

TEST_F(AlongGradTest, SelectedParts) {
  ExpectGradientsMatch(
      [](Ops& ops, In in) {
        const Tensor mask = ops.Apply(ElementOp::kGreater, in[0], NumberLike(ops, 0, in[0]));
        return std::vector<Tensor>{ops.Select(ops.Stop(mask), in[1], in[2])};
      },
      {Values{{{2, 3}}, {{1, -1, 1, -1, -1, 1}}}, Random({{1, 3}}, 2), Random({{2, 1}}, 3)},
      {false, true, true});
}

TEST_F(AlongGradTest, Reductions) {
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMax, ReduceOp::kLogSumExp}) {
    for (int axis : {0, 1, -1}) {
      SCOPED_TRACE(static_cast<int>(op) * 10 + axis);
      ExpectMatch([&](Ops& ops, const Tensor& x) { return ops.Reduce(op, x, axis); });
    }
  }
}

TEST_F(AlongGradTest, TheFirstMaximumGetsTheGradient) {
  const auto grads = Gradients(
      [](Ops& ops, In in) { return std::vector<Tensor>{ops.Reduce(ReduceOp::kMax, in[0], 1)}; },
      inputs_ = {Values{{{1, 4}}, {{1, 3, 3, 2}}}}, {true});
  EXPECT_EQ(grads[0][0].As<float>()[1], static_cast<float>(Weight(0, 0, 0)));
  EXPECT_EQ(grads[0][0].As<float>()[2], 0);
}

TEST_F(AlongGradTest, SumsToAShape) {
  ExpectGradientsMatch(
      [](Ops& ops, In in) {
        return std::vector<Tensor>{ops.SumTo(in[0], {{1, 4, 1}, {3, 1, 2}})};
      },
      {Random({{2, 4, 3}, {3, 5, 2}}, 1)});
}

TEST_F(AlongGradTest, Softmaxes) {
  for (int axis : {0, 1, 2}) {
    ExpectMatch([&](Ops& ops, const Tensor& x) { return ops.Softmax(x, axis); });
    ExpectMatch([&](Ops& ops, const Tensor& x) { return ops.LogSoftmax(x, axis); });
  }
}

TEST_F(AlongGradTest, Cumulatives) {
  for (CumulativeOp op : {CumulativeOp::kSum, CumulativeOp::kMax, CumulativeOp::kLogSumExp}) {
    for (int way = 0; way < 4; ++way) {
      SCOPED_TRACE(static_cast<int>(op) * 10 + way);
      ExpectMatch([&](Ops& ops, const Tensor& x) {
        return ops.Cumulative(op, x, 1, way % 2 != 0, way / 2 != 0);
      });
    }
  }
}

// e^x and e^-c are beyond float32, their product is not; c in float32 is 0.03 off at 1e6.
TEST_F(AlongGradTest, CumulativeLogSumExpOfLargeNumbers) {
  constexpr int kCount = 6;
  const double far[kCount] = {-INFINITY, 0, 1, -1, -3, 2};
  for (const double size : {500.0, 1e6, -1e6}) {
    for (int way = 0; way < 4; ++way) {
      SCOPED_TRACE(std::to_string(size) + " " + std::to_string(way));
      const bool exclusive = way % 2 != 0, reverse = way / 2 != 0;
      Values x{{{kCount, 1}}, {std::vector<float>(kCount)}};
      for (int i = 0; i < kCount; ++i) x.data[0][i] = static_cast<float>(size + far[i]);
      const auto grads = Gradients(
          [&](Ops& ops, In in) {
            return std::vector<Tensor>{
                ops.Cumulative(CumulativeOp::kLogSumExp, in[0], 0, exclusive, reverse)};
          },
          inputs_ = {x}, {true});
      double expected[kCount] = {};
      for (int j = 0; j < kCount; ++j) {
        const auto sees = [&](int i) {
          return (reverse ? i > j : i < j) || (i == j && !exclusive);
        };
        double sum = 0;
        for (int i = 0; i < kCount; ++i) sum += sees(i) ? std::exp(far[i]) : 0;
        for (int i = 0; i < kCount && sum > 0; ++i) {
          expected[i] += sees(i) ? Weight(0, 0, j) * std::exp(far[i]) / sum : 0;
        }
      }
      for (int i = 0; i < kCount; ++i) EXPECT_NEAR(grads[0][0].As<float>()[i], expected[i], 1e-6);
    }
  }
}

TEST_F(AlongGradTest, LayerNormWithWeightAndBias) {
  ExpectGradientsMatch(
      [](Ops& ops, In in) { return std::vector<Tensor>{ops.LayerNorm(in[0], 0.1, in[1], in[2])}; },
      {Random({{2, 3, 5}, {1, 2, 4}}, 1), Random({{1, 1, 5}, {1, 1, 4}}, 2),
       Random({{1, 1, 5}, {1, 1, 4}}, 3)});
}

TEST_F(AlongGradTest, Pools) {
  const std::vector<std::vector<RowRange>> ranges = {
      {{0, 3}, {1, 4}, {1, 5}, {5, 5}}, {{0, 0}, {0, 1}}, {{0, 0}}};
  for (PoolOp op : {PoolOp::kSum, PoolOp::kMean, PoolOp::kMax}) {
    SCOPED_TRACE(static_cast<int>(op));
    ExpectMatch([&](Ops& ops, const Tensor& x) { return ops.Pool(op, x, ranges); });
  }
}

}  // namespace
}  // namespace attnd::testing
