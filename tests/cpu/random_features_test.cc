// random_features on every instruction set against plain loops: exponents and angles of any size,
// what lies below eps, NaN, dtypes and strides.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/plain/test_array.h"

namespace attnd::testing {
namespace {

struct Case {
  RandomFeaturesParams params;
  TestArray x, w, phi, shift, dphi, dx;

  Case(const RandomFeaturesParams& o, const Shape& rows, int64_t m, DType dtype = DType::kF32,
       Memory memory = Memory::kDense, double size = 1)
      : params(o),
        x(TestArray::Random(1, dtype, rows, memory, -size, size)),
        w(TestArray::Random(2, DType::kF32, {1, 1, m, rows[3]}, memory)),
        dx(dtype, rows, memory) {
    const Shape features = {rows[0], rows[1], rows[2], FeatureCount(o.feature, m)};
    phi = TestArray(DType::kF32, features);
    dphi = TestArray::Random(3, DType::kF32, features, memory);
    if (HasShift(o.feature)) {
      shift = TestArray(DType::kF32, {rows[0], rows[1], o.shares_shift ? 1 : rows[2], 1});
    }
  }

  RandomFeaturesProblem Forward() const { return {x.view(), w.view(), phi.view(), shift.view()}; }
  RandomFeaturesGradProblem Backward() const { return {Forward(), dphi.view(), dx.view()}; }
  void Run(Device& device) const {
    const RandomFeaturesArgs forward = {params, {Forward()}};
    const RandomFeaturesGradArgs backward = {params, {Backward()}};
    RunOn(device, [&](Stream& s) { return device.Run(s, forward); });
    RunOn(device, [&](Stream& s) { return device.Run(s, backward); });
  }
  void RunPlain() const {
    PlainRun(RandomFeaturesArgs{params, {Forward()}});
    PlainRun(RandomFeaturesGradArgs{params, {Backward()}});
  }
};

// Of the same inputs; results within these bounds of plain loops.
void ExpectAsInPlainLoops(const Case& c, double relative, double absolute) {
  c.RunPlain();
  const PlainArray phi = c.phi.Read(), dx = c.dx.Read();
  for (const std::string& isa : AvailableIsas()) {
    SCOPED_TRACE(isa);
    c.Run(CpuOf(isa, 2));
    ExpectNear(c.phi.Read(), phi, relative, absolute);
    ExpectNear(c.dx.Read(), dx, relative, absolute);
    for (const TestArray* array : {&c.phi, &c.dx}) EXPECT_TRUE(array->GuardsIntact());
  }
}

// Features that are stored past the caches are those of the same rows alone.
TEST(RandomFeaturesTest, SameBitsPastTheCaches) {
  constexpr int64_t kHeads = 2, kRows = 70, kDirections = 256, kLine = 16;
  for (RandomFeature feature : {RandomFeature::kExp, RandomFeature::kSinCos}) {
    const RandomFeaturesParams params = {.feature = feature};
    const Case few(params, {1, kHeads, kRows, 8}, kDirections);
    const Case many(params, {1, kHeads, 13000, 8}, kDirections);
    RandomFeaturesProblem past = many.Forward(), alone = few.Forward();
    std::vector<float> memory(static_cast<size_t>(past.phi.shape.size() + kLine));
    float* phi = memory.data();
    while (reinterpret_cast<uintptr_t>(phi) % (kLine * sizeof(float)) != 0) ++phi;
    past.phi = DenseView(phi, DType::kF32, past.phi.shape);
    alone.x = past.x;
    alone.x.shape.dims[2] = kRows;
    for (const std::string& isa : AvailableIsas()) {
      SCOPED_TRACE(isa);
      for (const RandomFeaturesProblem& problem : {past, alone}) {
        const RandomFeaturesArgs args = {params, {problem}};
        Device& device = CpuOf(isa, 2);
        RunOn(device, [&](Stream& s) { return device.Run(s, args); });
      }
      const PlainArray want = few.phi.Read();
      const View& got = past.phi;
      ForEachIndex(want.shape, [&](const std::vector<int64_t>& at) {
        const float value = phi[at[1] * got.stride[1] + at[2] * got.stride[2] + at[3]];
        if (value != want.At(at)) ADD_FAILURE() << at[1] << " " << at[2] << " " << at[3];
      });
    }
  }
}

// Every e^.. is near 1e-30: a gradient from phi - eps would be 0.
TEST(RandomFeaturesTest, GradientsFarBelowEpsAreExact) {
  for (RandomFeature feature : {RandomFeature::kExp, RandomFeature::kCosh}) {
    for (bool shares : {false, true}) {
      const Case c({.feature = feature, .eps = 0.01, .shares_shift = shares}, {1, 1, 67, 9}, 33);
      PlainArray x = c.x.Read();
      for (size_t i = 0; i < x.values.size(); ++i) x.values[i] = i % 9 == 0 ? 11.5 : 0.01;
      WriteView(x, c.x.view());
      // Exponents near -70 are known to 70 2^-24, and so are terms of 1e-29.
      ExpectAsInPlainLoops(c, 1e-4, 1e-33);
      EXPECT_LT(std::fabs(c.dx.Read().values[4]), 1e-20);
      EXPECT_NE(c.dx.Read().values[4], 0);
    }
  }
}

// Beyond 4096 angles take another way; float32 of an angle near 1e5 is off by 4e-3.
TEST(RandomFeaturesTest, AnglesOfAnySize) {
  for (double alpha : {1.0, 300.0, 3000.0}) {
    // Whole numbers: u is exact.
    const Case c({.feature = RandomFeature::kSinCos, .alpha = alpha}, {1, 1, 65, 2}, 17);
    PlainArray x = c.x.Read(), w = c.w.Read();
    for (size_t i = 0; i < x.values.size(); ++i) x.values[i] = static_cast<double>(i % 23) - 11;
    for (size_t i = 0; i < w.values.size(); ++i) w.values[i] = static_cast<double>(i % 7) - 3;
    WriteView(x, c.x.view());
    WriteView(w, c.w.view());
    ExpectAsInPlainLoops(c, 0, 2e-5 * alpha);
    c.RunPlain();
    const PlainArray phi = c.phi.Read();
    c.Run(CpuOf(AvailableIsas().back(), 1));
    ExpectNear(c.phi.Read(), phi, 0, 3e-7);
  }
}

TEST(RandomFeaturesTest, RelusWithAndWithoutEps) {
  for (double eps : {0.0, 0.1}) {
    for (int64_t m : {20, 64}) {
      const RandomFeaturesParams params = {
          .feature = RandomFeature::kMapped, .alpha = 0.7, .factor = 0.4, .eps = eps};
      ExpectAsInPlainLoops(Case(params, {2, 2, 65, 9}, m), 1e-5, 1e-5);
    }
  }
}

TEST(RandomFeaturesTest, RowsWithNanLeaveOthersAsTheyAre) {
  for (int kind = 0; kind < 5; ++kind) {
    const Case c({.feature = static_cast<RandomFeature>(kind)}, {1, 2, 40, 5}, 19);
    PlainArray x = c.x.Read();
    x.At({0, 1, 7, 2}) = NAN;
    WriteView(x, c.x.view());
    ExpectAsInPlainLoops(c, 1e-4, 1e-5);
    EXPECT_TRUE(std::isnan(c.phi.Read().At({0, 1, 7, 0})));
  }
}

TEST(RandomFeaturesTest, ASharedShiftIsNanWhereOneIs) {
  for (RandomFeature feature :
       {RandomFeature::kExp, RandomFeature::kCosh, RandomFeature::kCosSin}) {
    const Case c({.feature = feature, .shares_shift = true}, {1, 2, 130, 5}, 19);
    PlainArray x = c.x.Read();
    x.At({0, 1, 70, 2}) = NAN;
    WriteView(x, c.x.view());
    ExpectAsInPlainLoops(c, 1e-4, 1e-5);
    EXPECT_FALSE(std::isnan(c.shift.Read().At({0, 0, 0, 0})));
    EXPECT_TRUE(std::isnan(c.shift.Read().At({0, 1, 0, 0})));
  }
}

TEST(RandomFeaturesTest, AnyDtypeAndPitch) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (Memory memory : {Memory::kDense, Memory::kPitched}) {
      for (int64_t D : {1, 64, 65}) {
        for (int kind = 0; kind < 5; ++kind) {
          const Case c({.feature = static_cast<RandomFeature>(kind), .alpha = 0.3}, {2, 2, 15, D},
                       67, dtype, memory);
          // Gradients in halves are rounded.
          ExpectAsInPlainLoops(c, dtype == DType::kF32 ? 1e-5 : 1.0 / 128, 1e-4);
        }
      }
    }
  }
}

}  // namespace
}  // namespace attnd::testing
