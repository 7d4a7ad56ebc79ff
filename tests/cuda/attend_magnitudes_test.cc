// Weights of attention at every magnitude of the scores on the CUDA device: in the gradient they
// sum to 1 and are those of the forward, by whichever kernels, and through merges of parts.
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device/merge.h"
#include "tests/cpu/attend_case.h"
#include "tests/cpu/attend_grad_case.h"
#include "tests/plain/cpus.h"

namespace attnd::testing {
namespace {

constexpr DType kFloats[] = {DType::kF32, DType::kF16, DType::kBF16};
constexpr double kMagnitudes[] = {1, 1e2, 1e4, 1e6, 1e8, 1e12, 1e30};

Device& Cuda() { return CpuOf("cuda", 1); }

GradSizes OfType(GradSizes sizes, DType dtype) {
  sizes.q = sizes.k = sizes.v = sizes.out = dtype;
  return sizes;
}

// A problem whose gradient of v tells the weights: v is 1 everywhere, so that out is 1 in rows that
// see something, and dout of row i is 1 in column i mod Dv alone.
class Weights {
 public:
  explicit Weights(const GradSizes& sizes, unsigned seed = 1)
      : c(sizes, seed), low_(DType::kF32, {sizes.B, sizes.H, sizes.Nq}) {
    for (const char* name : {"v", "v2"}) {
      if (std::string(name) == "v2" && sizes.Nk2 == 0) continue;
      c[name].Write(PlainArray(c[name].view().shape, 1));
    }
    TakeGradients(sizes.out, DType::kF32);
    c["dlse"].Write(PlainArray(c["dlse"].view().shape, 0));
  }
  // In other types than those of the forward: of dout, and of dv (and of dq and dk, which follow).
  void TakeGradients(DType of_dout, DType of_dv) {
    c["dout"] = TestArray(of_dout, c["dout"].view().shape, c.sizes.memory);
    PlainArray dout(c["dout"].view().shape);
    ForEachIndex(dout.shape, [&](const std::vector<int64_t>& at) {
      dout.At(at) = at[3] == at[2] % c.sizes.Dv ? 1 : 0;
    });
    c["dout"].Write(dout);
    c["dv"] = TestArray(of_dv, c["v"].view().shape);
  }

  AttendGradProblem Problem() const {
    AttendGradProblem p = c.Problem();
    p.forward.lse_low = low_.view();
    CountBytes(&p.forward.seqs);
    return p;
  }
  void Forward() const {
    const AttendArgs args{.params = c.Params(), .problems = {Problem().forward}};
    RunOn(
        Cuda(), [&](Stream& stream) { return Cuda().Run(stream, args); }, Planned::kAtLeast);
  }
  void Backward() const { RunAttendGrad(Cuda(), c.Params(), {Problem()}); }

  // What the weights of row i of a head sum to: 1 without the share of a sink.
  double Sum(int64_t b, int64_t h, int64_t i) const {
    const double lse = c["lse"].Read().At({b, h, i});
    if (lse == -INFINITY) return 0;
    if (!c.Problem().forward.terms.sinks.given()) return 1;
    const double sink = ReadView(c.Problem().forward.terms.sinks).At({b, h});
    return 1 - std::exp(sink - lse - low_.Read().At({b, h, i}));
  }
  // REQUIRES: H == Hkv.
  void ExpectSums(double tolerance) const {
    const GradSizes& s = c.sizes;
    const PlainArray dv = c["dv"].Read();
    for (int64_t b = 0; b < s.B; ++b) {
      for (int64_t h = 0; h < s.H; ++h) {
        std::vector<double> got(s.Dv), want(s.Dv);
        for (int64_t i = 0; i < s.Nq; ++i) want[i % s.Dv] += Sum(b, h, i);
        for (int64_t d = 0; d < s.Dv; ++d) {
          for (int64_t j = 0; j < s.Nk; ++j) got[d] += dv.At({b, h, j, d});
          if (s.Nk2 == 0) continue;
          const PlainArray dv2 = c["dv2"].Read();
          for (int64_t j = 0; j < s.Nk2; ++j) got[d] += dv2.At({b, h, j, d});
        }
        for (int64_t d = 0; d < s.Dv; ++d) {
          const double rows = std::ceil(static_cast<double>(s.Nq - d) / static_cast<double>(s.Dv));
          ASSERT_NEAR(got[d], want[d], tolerance * std::max(rows, 1.0))
              << b << " " << h << " " << d;
        }
      }
    }
  }
  const TestArray& low() const { return low_; }

  GradCase c;

 private:
  TestArray low_;
};

// Of float16 and bfloat16 weights keep two parts beside float32 gradients.
double ToleranceOf(DType dtype) { return dtype == DType::kBF16 ? 3e-5 : 1e-5; }

void ExpectSums(GradSizes sizes, unsigned seed) {
  for (const double magnitude : kMagnitudes) {
    SCOPED_TRACE(::testing::Message() << magnitude << " " << Name(sizes.q) << " D" << sizes.D << " "
                                      << static_cast<int>(sizes.slots) << sizes.terms);
    sizes.stretch = magnitude;
    Weights weights(sizes, seed);
    weights.Forward();
    weights.Backward();
    weights.ExpectSums(ToleranceOf(sizes.q));
  }
}

class AttendMagnitudesCuda : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(, AttendMagnitudesCuda, ::testing::ValuesIn(kFloats),
                         [](const auto& info) { return Name(info.param); });

TEST_P(AttendMagnitudesCuda, SumsOfWeights) {
  unsigned seed = 1;
  for (const Slots slots :
       {Slots::kNone, Slots::kInOrder, Slots::kGather, Slots::kByHead, Slots::kListed}) {
    for (const char* terms : {"", "bias slopes sinks", "table labels constants", "relative"}) {
      if (slots == Slots::kListed && terms[0] != 0 && terms[0] != 'b') continue;
      ExpectSums(OfType({.H = 2,
                         .Hkv = 2,
                         .Nq = 70,
                         .Nk = 100,
                         .Nk2 = slots == Slots::kGather ? 9 : 0,
                         .D = 24,
                         .Dv = 70,
                         .slots = slots,
                         .terms = terms},
                        GetParam()),
                 seed++);
    }
  }
}

TEST_P(AttendMagnitudesCuda, SumsOfWeightsOfWideRows) {
  for (const char* terms : {"", "relative sinks"}) {
    ExpectSums(OfType({.Nq = 70, .Nk = 90, .D = 200, .Dv = 70, .terms = terms}, GetParam()), 30);
  }
}

// Few queries on many keys: parts of the keys, whose states are merged.
TEST_P(AttendMagnitudesCuda, SumsOfWeightsOfSplitKeys) {
  ExpectSums(OfType({.Nq = 3, .Nk = 3000, .D = 8, .Dv = 8}, GetParam()), 40);
  ExpectSums(OfType({.Nq = 3, .Nk = 3000, .D = 8, .Dv = 8, .terms = "sinks bias"}, GetParam()), 41);
}

// A gradient of float32 meets operands of 16 bits in tiles of float32.
TEST_P(AttendMagnitudesCuda, SumsOfWeightsWhereTheGradientIsOfFloat32) {
  for (const double magnitude : kMagnitudes) {
    for (const char* terms : {"", "bias slopes"}) {
      GradSizes sizes =
          OfType({.Nq = 70, .Nk = 100, .D = 72, .Dv = 70, .terms = terms}, GetParam());
      sizes.stretch = magnitude;
      SCOPED_TRACE(magnitude);
      Weights weights(sizes, 50);
      weights.TakeGradients(DType::kF32, DType::kF32);
      weights.Forward();
      weights.Backward();
      weights.ExpectSums(1e-5);
    }
  }
}

// A result of float32 meets operands of 16 bits in tiles of float32.
TEST_P(AttendMagnitudesCuda, SumsOfWeightsWhereTheResultIsOfFloat32) {
  for (const double magnitude : kMagnitudes) {
    GradSizes sizes = OfType({.Nq = 70, .Nk = 100, .D = 72, .Dv = 70}, GetParam());
    sizes.stretch = magnitude, sizes.out = DType::kF32;
    SCOPED_TRACE(magnitude);
    Weights weights(sizes, 51);
    weights.TakeGradients(GetParam(), DType::kF32);
    weights.Forward();
    weights.Backward();
    weights.ExpectSums(ToleranceOf(GetParam()));
  }
}

// Wide tiles, with a gradient of 16 bits.
TEST_P(AttendMagnitudesCuda, SumsOfWeightsOfWideTiles) {
  for (const char* terms : {"", "constants"}) {
    for (const double magnitude : kMagnitudes) {
      GradSizes sizes = OfType({.Nq = 260,
                                .Nk = 270,
                                .D = 40,
                                .Dv = 64,
                                .slots = *terms == 0 ? Slots::kNone : Slots::kInOrder,
                                .terms = terms},
                               GetParam());
      sizes.stretch = magnitude;
      SCOPED_TRACE(::testing::Message() << magnitude << terms);
      Weights weights(sizes, 60);
      weights.TakeGradients(GetParam(), GetParam());
      weights.Forward();
      weights.Backward();
      weights.ExpectSums(GetParam() == DType::kF32   ? 1e-5
                         : GetParam() == DType::kF16 ? 0x1p-10
                                                     : 0x1p-7);
    }
  }
}

// A value for each key: out and dv are the weights of the two directions.
TEST_P(AttendMagnitudesCuda, WeightsOfTheGradientAreThoseOfTheForward) {
  for (const double magnitude : kMagnitudes) {
    SCOPED_TRACE(magnitude);
    GradSizes sizes =
        OfType({.Nq = 64, .Nk = 64, .D = 24, .Dv = 64, .terms = "slopes"}, GetParam());
    sizes.stretch = magnitude;
    Weights weights(sizes, 70);
    PlainArray v({1, 1, 64, 64}, 0);
    for (int64_t j = 0; j < 64; ++j) v.At({0, 0, j, j}) = 1;
    weights.c["v"].Write(v);
    weights.Forward();
    weights.Backward();
    const PlainArray out = weights.c["out"].Read(), dv = weights.c["dv"].Read();
    const double u = GetParam() == DType::kF32   ? 1e-5
                     : GetParam() == DType::kF16 ? 0x1p-11
                                                 : 0x1p-8;
    for (int64_t i = 0; i < 64; ++i) {
      for (int64_t j = 0; j < 64; ++j) {
        ASSERT_NEAR(out.At({0, 0, i, j}), dv.At({0, 0, j, i}), u) << i << " " << j;
      }
    }
  }
}

// One query, one key, one channel: the weight is 1 whatever the score, and no gradient flows to q
// and k.
TEST_P(AttendMagnitudesCuda, OneKeyHasAllOfTheWeight) {
  for (const double x : {1.0, 1e3, 1.2e4, 3.3e4}) {
    SCOPED_TRACE(x);
    Weights one(OfType({.Nq = 1, .Nk = 1, .D = 1, .Dv = 1}, GetParam()));
    one.c["q"].Write(PlainArray({1, 1, 1, 1}, x));
    one.c["k"].Write(PlainArray({1, 1, 1, 1}, x));
    one.Forward();
    one.Backward();
    EXPECT_NEAR(one.c["dv"].Read().values[0], 1, 1e-5);
    EXPECT_EQ(one.c["dq"].Read().values[0], 0);
    EXPECT_EQ(one.c["dk"].Read().values[0], 0);
  }
}

// Models write masks of finite numbers. A row that has no other has equal weights.
TEST_P(AttendMagnitudesCuda, RowsOfFiniteMasksHaveEqualWeights) {
  for (const double mask : {-1e7, -1e9, -static_cast<double>(FLT_MAX)}) {
    SCOPED_TRACE(mask);
    Weights row(OfType({.Nq = 2, .Nk = 8, .D = 4, .Dv = 8, .terms = "bias"}, GetParam()));
    // What a score adds to the mask is lost in its rounding.
    row.c["q"].Write(PlainArray({1, 1, 2, 4}, 0));
    row.c["bias"] = TestArray(DType::kF32, {1, 1, 2, 8});
    PlainArray bias({1, 1, 2, 8}, mask);
    for (int64_t j = 3; j < 8; ++j) bias.At({0, 0, 1, j}) = -INFINITY;
    row.c["bias"].Write(bias);
    row.Forward();
    row.Backward();
    const PlainArray dv = row.c["dv"].Read(), lse = row.c["lse"].Read(), low = row.low().Read();
    for (int64_t i = 0; i < 2; ++i) {
      const int64_t seen = i == 0 ? 8 : 3;
      for (int64_t j = 0; j < 8; ++j) {
        const double weight = j < seen ? 1.0 / static_cast<double>(seen) : 0;
        EXPECT_NEAR(dv.At({0, 0, j, i}), weight, 1e-5) << i << " " << j;
      }
      const double exact = static_cast<float>(mask) + std::log(static_cast<double>(seen));
      EXPECT_EQ(lse.At({0, 0, i}), static_cast<float>(exact));
      EXPECT_NEAR(lse.At({0, 0, i}) + low.At({0, 0, i}), exact, 1e-6 + std::fabs(exact) * 0x1p-50);
      EXPECT_NEAR(
          low.At({0, 0, i}),
          static_cast<float>(mask) - lse.At({0, 0, i}) + std::log(static_cast<double>(seen)), 1e-6);
    }
  }
}

// Finite numbers that add up beyond float32's range hide no pair.
TEST(MagnitudesCuda, ScoresBeyondTheRangeAreCut) {
  Weights row({.Nq = 1, .Nk = 4, .D = 1, .Dv = 1, .terms = "bias"});
  row.c["q"].Write(PlainArray({1, 1, 1, 1}, -1e19));
  row.c["k"].Write(PlainArray({1, 1, 4, 1}, 1e19));
  row.c["bias"].Write(PlainArray({1, 1, 1, 4}, -3e38));
  row.Forward();
  row.Backward();
  EXPECT_EQ(row.c["lse"].Read().values[0], -FLT_MAX);
  for (const double weight : row.c["dv"].Read().values) EXPECT_NEAR(weight, 0.25, 1e-6);
}

// Two calls over halves of the keys, whose lse are far from what float32 holds well.
TEST_P(AttendMagnitudesCuda, MergedPartsHaveWeightsThatSumToOne) {
  for (const double magnitude : kMagnitudes) {
    SCOPED_TRACE(magnitude);
    const GradSizes half =
        OfType({.Nq = 40, .Nk = 50, .D = 24, .Dv = 40, .stretch = magnitude}, GetParam());
    Weights first(half, 80), second(half, 81);
    // One query meets alike keys in both.
    second.c["q"].Write(first.c["q"].Read());
    PlainArray keys = second.c["k"].Read();
    for (int64_t j = 0; j < 50; j += 3) {
      for (int64_t d = 0; d < 24; ++d) keys.At({0, 0, j, d}) = first.c["k"].Read().At({0, 0, j, d});
    }
    second.c["k"].Write(keys);
    first.Forward();
    second.Forward();
    const TestArray out(DType::kF32, {1, 1, 40, 40}), lse(DType::kF32, {1, 1, 40}),
        low(DType::kF32, {1, 1, 40});
    const auto part = [](const Weights& of) {
      return MergePart{of.c["out"].view(), of.c["lse"].view(), of.low().view()};
    };
    const MergeArgs merge{.problems = {{.parts = {part(first), part(second)},
                                        .out = out.view(),
                                        .lse = lse.view(),
                                        .lse_low = low.view()}}};
    RunOn(Cuda(), [&](Stream& stream) { return Cuda().Run(stream, merge); });
    for (const double x : out.Read().values) ASSERT_NEAR(x, 1, 1e-5);
    std::vector<double> sums(40);
    for (Weights* weights : {&first, &second}) {
      AttendGradProblem p = weights->Problem();
      p.forward.out = out.view(), p.forward.lse = lse.view(), p.forward.lse_low = low.view();
      RunAttendGrad(Cuda(), weights->c.Params(), {p});
      const PlainArray dv = weights->c["dv"].Read();
      for (size_t n = 0; n < dv.values.size(); ++n) sums[n % 40] += dv.values[n];
    }
    for (const double sum : sums) ASSERT_NEAR(sum, 1, ToleranceOf(GetParam()));
  }
}

// The gradient of a merge: parts of one lse have equal shares.
TEST(MagnitudesCuda, SharesOfMergedParts) {
  for (const double magnitude : kMagnitudes) {
    const auto top = static_cast<float>(magnitude);
    SCOPED_TRACE(magnitude);
    std::vector<TestArray> arrays;
    MergeGradProblem p;
    // Shares of e^0.25, e^0.5 and e^-0.75: what rounding of lse left out.
    const double lows[] = {0.25, 0.5, -0.75};
    double sum = 0;
    const auto array = [&](const Shape& shape, double x) {
      arrays.emplace_back(DType::kF32, shape).Write(PlainArray(shape, x));
      return arrays.back().view();
    };
    for (const double low : lows) {
      sum += std::exp(low);
      p.forward.parts.push_back(
          {array({1, 1, 1, 1}, 1), array({1, 1, 1}, top), array({1, 1, 1}, low)});
      p.dparts.push_back({array({1, 1, 1, 1}, 0), array({1, 1, 1}, 0), {}});
    }
    p.forward.out = array({1, 1, 1, 1}, 0), p.forward.lse = array({1, 1, 1}, 0);
    p.forward.lse_low = array({1, 1, 1}, 0);
    p.dout = array({1, 1, 1, 1}, 1), p.dlse = array({1, 1, 1}, 1);
    RunOn(Cuda(),
          [&](Stream& stream) { return Cuda().Run(stream, MergeArgs{.problems = {p.forward}}); });
    RunOn(Cuda(),
          [&](Stream& stream) { return Cuda().Run(stream, MergeGradArgs{.problems = {p}}); });
    const double lse = ReadView(p.forward.lse).values[0],
                 low = ReadView(p.forward.lse_low).values[0];
    EXPECT_EQ(lse, static_cast<float>(top + std::log(sum)));
    EXPECT_NEAR(low, top - lse + std::log(sum), 1e-6);
    for (size_t n = 0; n < 3; ++n) {
      EXPECT_NEAR(ReadView(p.dparts[n].out).values[0], std::exp(lows[n]) / sum, 1e-6) << n;
      EXPECT_NEAR(ReadView(p.dparts[n].lse).values[0], std::exp(lows[n]) / sum, 1e-6) << n;
    }
  }
}

// A sink that outweighs the keys by little, at any size: its gradient is its share.
TEST(MagnitudesCuda, GradientsOfSinks) {
  for (const double magnitude : {1.0, 1e4, 1e8, 1e30}) {
    SCOPED_TRACE(magnitude);
    Weights row({.Nq = 1, .Nk = 2, .D = 1, .Dv = 1, .terms = "bias sinks"});
    row.c["q"].Write(PlainArray({1, 1, 1, 1}, 0));
    row.c["bias"].Write(PlainArray({1, 1, 1, 2}, magnitude));
    row.c["sinks"].Write(PlainArray({1, 1}, magnitude));
    row.Forward();
    row.Backward();
    // dsink = share (0 - delta), delta = dout . out = 2 / 3.
    EXPECT_NEAR(row.c["dsinks"].Read().values[0], -2.0 / 9, 1e-5);
    EXPECT_NEAR(row.c["dv"].Read().values[1], 1.0 / 3, 1e-5);
  }
}

}  // namespace
}  // namespace attnd::testing
