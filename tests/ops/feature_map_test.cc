// Feature maps against their definitions, on ragged lists, and their gradients.
#include "kernels/ops/feature_map.h"

#include "tests/ops/gradient_case.h"

namespace attnd::testing {
namespace {

class FeatureMapTest : public GradientTest {
 protected:
  // expected(row of x, its length) is the row of the result.
  template <class Map, class Expected>
  void ExpectRows(Values values, const Map& map, const Expected& expected) {
    Stream stream(device_, &pool_);
    Ops ops(stream, nullptr);
    const Tensor out = map(ops, values.AsTensor());
    ASSERT_TRUE(ops.status().ok()) << ops.status();
    for (size_t p = 0; p < out.size(); ++p) {
      const Shape& shape = values.shapes[p];
      const int64_t D = shape[shape.rank - 1];
      for (int64_t r = 0; r < shape.size() / D; ++r) {
        const std::vector<double> x(values.data[p].begin() + r * D,
                                    values.data[p].begin() + (r + 1) * D);
        const std::vector<double> row = expected(x);
        const auto width = static_cast<int64_t>(row.size());
        ASSERT_EQ(out[p].shape[shape.rank - 1], width);
        for (int64_t i = 0; i < width; ++i) {
          EXPECT_NEAR(out[p].As<float>()[r * width + i], row[i], 1e-6);
        }
      }
    }
  }

  static std::vector<Shape> Ragged() { return {{1, 2, 5, 3}, {2, 1, 4, 3}}; }
  // Far from the kinks of relu.
  static Values Away(unsigned seed) {
    Values values = Random(Ragged(), seed);
    for (auto& list : values.data) {
      for (float& x : list) x += x < 0 ? -0.1f : 0.1f;
    }
    return values;
  }
};

TEST_F(FeatureMapTest, Dpfp) {
  // nu beyond 2D wraps around.
  for (int64_t nu : {1, 2, 3, 7}) {
    const auto map = [nu](Ops& ops, const Tensor& x) { return FeaturesOf(ops, x, {.nu = nu}); };
    ExpectRows(Random(Ragged(), 1), map, [nu](const std::vector<double>& x) {
      std::vector<double> r, row;
      for (double v : x) r.push_back(std::fmax(v, 0));
      for (double v : x) r.push_back(std::fmax(-v, 0));
      const auto width = static_cast<int64_t>(r.size());
      for (int64_t j = 1; j <= nu; ++j) {
        for (int64_t i = 0; i < width; ++i) {
          row.push_back(r[i] * r[((i - j) % width + width) % width]);
        }
      }
      return row;
    });
  }
  ExpectGradientsMatch(
      [](Ops& ops, const std::vector<Tensor>& in) {
        return std::vector{FeaturesOf(ops, in[0], {.nu = 3})};
      },
      {Away(2)});
}

TEST_F(FeatureMapTest, SumNormalized) {
  const auto map = [](Ops& ops, const Tensor& x) {
    return FeaturesOf(ops, x, {.norm = RowNorm::kSum});
  };
  Values values = Away(3);
  for (float& x : values.data[0]) x = std::fabs(x);
  const auto expected = [](const std::vector<double>& x) {
    double sum = 0;
    for (double v : x) sum += v;
    std::vector<double> row;
    for (double v : x) row.push_back(sum == 0 ? 0 : v / sum);
    return row;
  };
  values.data[1] = values.data[0];
  values.data[1].resize(24);
  std::fill(values.data[1].begin() + 3, values.data[1].begin() + 6, 0.0f);
  ExpectRows(values, map, expected);
  // Rows of nothing but 0 have no gradient.
  Tape tape;
  Stream stream(device_, &pool_);
  Ops ops(stream, &tape);
  const Tensor x = values.AsTensor();
  tape.Watch(x);
  const std::vector<Tensor> out = {map(ops, x)}, grads = {values.AsTensor()}, in = {x};
  const Tensor back = tape.Replay(ops, out, grads, in)[0];
  ASSERT_TRUE(ops.status().ok()) << ops.status();
  for (int i = 3; i < 6; ++i) EXPECT_EQ(back[1].As<float>()[i], 0);
  Values positive = Random(Ragged(), 4);
  for (auto& list : positive.data) {
    for (float& v : list) v = std::fabs(v) + 0.5f;
  }
  ExpectGradientsMatch(
      [&](Ops& o, const std::vector<Tensor>& i) { return std::vector{map(o, i[0])}; }, {positive});
}

TEST_F(FeatureMapTest, ARowOfZerosHasNoGradientThroughItsNorm) {
  Values x = Random({{2, 3}}, 7);
  std::fill_n(x.data[0].begin(), 3, 0.0f);
  for (const double offset : {0.0, 0.5}) {
    const auto map = [offset](Ops& ops, const std::vector<Tensor>& in) {
      return std::vector{FeaturesOf(ops, in[0], {.norm = RowNorm::kL2, .offset = offset})};
    };
    std::vector<Values> inputs = {x};
    const View grad = Gradients(map, inputs, {true})[0][0];
    for (int i = 0; i < 3; ++i) {
      EXPECT_FLOAT_EQ(grad.As<float>()[i], offset == 0 ? 0 : Weight(0, 0, i) / offset);
    }
    for (int i = 3; i < 6; ++i) EXPECT_NE(grad.As<float>()[i], 0);
  }
}

TEST_F(FeatureMapTest, RootsOfSquaresBeyondFloat32AndBelowAFloor) {
  const std::vector<float> rows = {3e20f, 4e20f, 3e-25f, 4e-25f, 3e-13f, 4e-13f, 3, 4};
  for (const double floor : {0.0, 1e-12}) {
    const auto map = [floor](Ops& ops, const std::vector<Tensor>& in) {
      return std::vector{FeaturesOf(ops, in[0], {.norm = RowNorm::kL2, .floor = floor})};
    };
    Values x = Random({{4, 2}}, 1);
    x.data[0] = rows;
    Stream stream(device_, &pool_);
    Ops ops(stream, nullptr);
    const Tensor out = map(ops, {x.AsTensor()})[0];
    std::vector<Values> inputs = {x};
    const View grad = Gradients(map, inputs, {true})[0][0];
    for (int i = 0; i < 4; ++i) {
      const double a = rows[2 * i], b = rows[2 * i + 1], root = std::hypot(a, b);
      const double norm = std::fmax(root, floor), flows = root < floor ? 0 : 1;
      EXPECT_FLOAT_EQ(out[0].As<float>()[2 * i], static_cast<float>(a / norm)) << i;
      const double g = Weight(0, 0, 2 * i), h = Weight(0, 0, 2 * i + 1);
      const double along = flows * (g * a + h * b) / norm;
      const double want = (g - along * a / root) / norm;
      EXPECT_NEAR(grad.As<float>()[2 * i] / want, 1, 1e-5) << i;
    }
  }
}

TEST_F(FeatureMapTest, L2Normalized) {
  const auto map = [](Ops& ops, const Tensor& x) {
    return FeaturesOf(ops, x, {.norm = RowNorm::kL2, .eps = 0.01});
  };
  ExpectRows(Random(Ragged(), 5), map, [](const std::vector<double>& x) {
    double sum = 0.01;
    for (double v : x) sum += v * v;
    std::vector<double> row;
    for (double v : x) row.push_back(v / std::sqrt(sum));
    return row;
  });
  ExpectGradientsMatch(
      [&](Ops& ops, const std::vector<Tensor>& in) { return std::vector{map(ops, in[0])}; },
      {Away(6)});
}

}  // namespace
}  // namespace attnd::testing
