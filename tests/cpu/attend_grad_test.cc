// AttendGrad with everything that its contract allows, against plain code.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/cpu/attend_grad_case.h"

namespace attnd::testing {
namespace {

constexpr DType kF32 = DType::kF32, kF16 = DType::kF16, kBF16 = DType::kBF16;
const char kAllTerms[] = "bias slopes sinks table labels relative constants cap";

class AttendGrad : public ::testing::TestWithParam<std::string> {
 protected:
  Device& device(int threads = 2) { return CpuOf(GetParam(), threads); }

  void ExpectPlain(const GradSizes& sizes, unsigned seed) {
    SCOPED_TRACE(::testing::Message()
                 << "Nq" << sizes.Nq << " Nk" << sizes.Nk << " slots"
                 << static_cast<int>(sizes.slots) << " terms: " << sizes.terms << " repeats "
                 << sizes.repeats << " weighting " << static_cast<int>(sizes.weighting));
    const GradCase c(sizes, seed);
    RunAttendGrad(device(), c.Params(), {c.Problem()});
    c.ExpectGradients();
  }
};
INSTANTIATE_TEST_SUITE_P(Isa, AttendGrad, ::testing::ValuesIn(AvailableIsas()),
                         [](const auto& info) { return info.param; });

TEST_P(AttendGrad, EveryTermAlone) {
  unsigned seed = 1;
  for (const char* terms :
       {"", "bias", "slopes", "sinks", "table labels", "relative", "constants", "cap", "cap bias",
        "cap relative table labels", "late table labels", "late cap table labels constants"}) {
    for (Slots slots : {Slots::kNone, Slots::kInOrder}) {
      ExpectPlain({.B = 2,
                   .H = 2,
                   .Hkv = 1,
                   .Nq = 70,
                   .Nk = 131,
                   .D = 20,
                   .Dv = 12,
                   .L = 90,
                   .slots = slots,
                   .padded = true,
                   .terms = terms},
                  seed++);
    }
  }
}

TEST_P(AttendGrad, AllTermsTogetherAtEverySizeAroundATile) {
  unsigned seed = 100;
  for (int64_t Nq : {0, 1, 63, 64, 65}) {
    for (int64_t Nk : {0, 1, 64, 131}) {
      for (Slots slots : {Slots::kInOrder, Slots::kGather}) {
        ExpectPlain({.H = 2,
                     .Hkv = 1,
                     .Nq = Nq,
                     .Nk = Nk,
                     .Nk2 = slots == Slots::kGather ? 5 : 0,
                     .D = 17,
                     .Dv = 3,
                     .slots = slots,
                     .terms = kAllTerms,
                     .hidden_bias = 0.1},
                    seed++);
      }
    }
  }
}

TEST_P(AttendGrad, GatheredRowsOfTwoSources) {
  unsigned seed = 200;
  for (Slots slots : {Slots::kGather, Slots::kOnce, Slots::kByHead}) {
    for (const char* terms : {"", "constants", "slopes sinks", "bias", "relative table labels"}) {
      for (int64_t Nk2 : {0, 30}) {
        ExpectPlain({.B = 2,
                     .H = 4,
                     .Hkv = 2,
                     .Nq = 75,
                     .Nk = 90,
                     .Nk2 = Nk2,
                     .D = 16,
                     .Dv = 24,
                     .slots = slots,
                     .padded = true,
                     .terms = terms},
                    seed++);
      }
    }
  }
}

// More tiles than a block of keys, and more than one share.
TEST_P(AttendGrad, ManyTiles) {
  for (Slots slots : {Slots::kNone, Slots::kInOrder, Slots::kGather, Slots::kOnce}) {
    ExpectPlain({.H = 2, .Hkv = 1, .Nq = 200, .Nk = 1100, .D = 8, .Dv = 16, .slots = slots}, 300);
    ExpectPlain({.Nq = 130, .Nk = 600, .D = 8, .Dv = 16, .slots = slots, .terms = kAllTerms}, 301);
  }
}

TEST_P(AttendGrad, OtherWeightings) {
  unsigned seed = 400;
  for (Weighting weighting :
       {Weighting::kRelu, Weighting::kReluSquared, Weighting::kGelu, Weighting::kSoftplus,
        Weighting::kIdentity, Weighting::kRelu6, Weighting::kSigmoid}) {
    for (const char* terms : {"", "row_weight", "bias slopes table labels relative cap"}) {
      ExpectPlain({.B = 2,
                   .H = 2,
                   .Hkv = 1,
                   .Nq = 66,
                   .Nk = 90,
                   .D = 12,
                   .Dv = 20,
                   .slots = seed % 2 == 0 ? Slots::kInOrder : Slots::kGather,
                   .padded = true,
                   .terms = terms,
                   .weighting = weighting,
                   .stretch = 8},
                  seed++);
    }
  }
}

TEST_P(AttendGrad, GradientsAreSummedWhereATermRepeats) {
  unsigned seed = 500;
  for (const char* repeats : {"b", "h", "bh", "q", "k", "qk", "bhqk", "bhk", "hq"}) {
    for (Slots slots : {Slots::kInOrder, Slots::kGather}) {
      ExpectPlain({.B = 3,
                   .H = 4,
                   .Hkv = 2,
                   .Nq = 40,
                   .Nk = 70,
                   .Nk2 = slots == Slots::kGather ? 9 : 0,
                   .D = 10,
                   .Dv = 6,
                   .slots = slots,
                   .terms = "bias slopes sinks table labels relative",
                   .repeats = repeats},
                  seed++);
    }
  }
}

TEST_P(AttendGrad, MixedDtypesAndPitches) {
  unsigned seed = 600;
  const DType types[][4] = {{kF32, kBF16, kF16, kF32},
                            {kBF16, kBF16, kF32, kBF16},
                            {kF16, kF32, kBF16, kF16},
                            {kBF16, kBF16, kBF16, kF32}};
  for (const auto& [q, k, v, out] : types) {
    for (const char* terms : {"", kAllTerms}) {
      ExpectPlain({.H = 2,
                   .Hkv = 1,
                   .Nq = 67,
                   .Nk = 129,
                   .D = 33,
                   .Dv = 18,
                   .slots = Slots::kInOrder,
                   .q = q,
                   .k = k,
                   .v = v,
                   .out = out,
                   .memory = Memory::kPitched,
                   .padded = true,
                   .terms = terms},
                  seed++);
    }
  }
}

// lse of more keys than this call sees: P sums to less than 1.
TEST_P(AttendGrad, APartOfAPattern) {
  GradCase c({.H = 2, .Nq = 65, .Nk = 100, .D = 16, .Dv = 16, .slots = Slots::kInOrder}, 7);
  PlainArray lse = c["lse"].Read(), out = c["out"].Read();
  for (double& x : lse.values) x = std::isfinite(x) ? x + 0.7 : 0.3;
  for (double& x : out.values) x = 0.5 * x + 0.1;
  c["lse"].Write(lse);
  c["out"].Write(out);
  RunAttendGrad(device(), c.Params(), {c.Problem()});
  c.ExpectGradients();
}

TEST_P(AttendGrad, UnseenRowsMayHoldAnything) {
  // Given: rows of every operand that are NaN, and a bias and masks that hide them.
  const double kNaN = std::nan("");
  for (Slots slots : {Slots::kNone, Slots::kGather}) {
    const GradSizes sizes = {.H = 2,
                             .Hkv = 1,
                             .Nq = 70,
                             .Nk = 140,
                             .D = 16,
                             .Dv = 16,
                             .slots = slots,
                             .terms = "bias table labels relative slopes"};
    GradCase c(sizes, 9), clean(sizes, 9);
    PlainArray k = c["k"].Read(), v = c["v"].Read(), bias = c["bias"].Read();
    for (int64_t d = 0; d < 16; ++d) k.At({0, 0, 66, d}) = v.At({0, 0, 66, d}) = kNaN;
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t i = 0; i < 70; ++i) {
        bias.At({0, h, i, 66}) = -std::numeric_limits<double>::infinity();
      }
    }
    c["bias"].Write(bias);
    clean["bias"].Write(bias);
    PlainAttendForward(clean.Params(), clean.Problem().forward);
    c["lse"].Write(clean["lse"].Read());
    c["out"].Write(clean["out"].Read());
    // And query 3 of head 0, which sees nothing, is NaN in everything.
    PlainArray lse = c["lse"].Read(), q = c["q"].Read(), q_rel = c["q_rel"].Read();
    PlainArray dout = c["dout"].Read();
    lse.At({0, 0, 3}) = -std::numeric_limits<double>::infinity();
    c["lse"].Write(lse);
    clean["lse"].Write(lse);
    for (int64_t d = 0; d < 16; ++d) {
      q.At({0, 0, 3, d}) = q_rel.At({0, 0, 3, d}) = dout.At({0, 0, 3, d}) = kNaN;
    }
    c["q"].Write(q);
    c["q_rel"].Write(q_rel);
    c["dout"].Write(dout);
    c["k"].Write(k);
    c["v"].Write(v);
    // When
    RunAttendGrad(device(), c.Params(), {c.Problem()});
    // Then: the gradients of the clean case, by its plain code.
    RunAttendGrad(device(), clean.Params(), {clean.Problem()});
    clean.ExpectGradients();
    for (const char* name : {"dq", "dk", "dv", "dbias", "dslopes", "dtable", "dq_rel", "dr"}) {
      SCOPED_TRACE(name);
      ExpectNear(c[name].Read(), clean[name].Read(), 1e-5, 1e-5);
    }
  }
}

std::vector<std::unique_ptr<GradCase>> RaggedCases(const std::string& terms) {
  std::vector<std::unique_ptr<GradCase>> cases;
  for (unsigned n = 0; n < 8; ++n) {
    const GradSizes sizes = {.B = 1 + n % 2,
                             .H = 4,
                             .Hkv = n % 3 == 0 ? 4 : 2,
                             .Nq = n * 37 % 120,
                             .Nk = n * 153 % 600,
                             .D = 12,
                             .Dv = 8,
                             .slots = Slots(n % 4),
                             .terms = terms,
                             .repeats = n % 2 == 0 ? "b" : "h"};
    cases.push_back(std::make_unique<GradCase>(sizes, n));
  }
  return cases;
}

TEST_P(AttendGrad, AProblemDoesNotDependOnItsListOrOnThreadsBitForBit) {
  for (const char* terms : {"", kAllTerms}) {
    const auto list = RaggedCases(terms), alone = RaggedCases(terms);
    std::vector<AttendGradProblem> all;
    for (const auto& c : list) all.push_back(c->Problem());
    const int64_t before = device(2).launches();
    RunAttendGrad(device(2), list[0]->Params(), all);
    EXPECT_EQ(device(2).launches(), before + 1);
    for (size_t n = 0; n < list.size(); ++n) {
      RunAttendGrad(device(1), alone[n]->Params(), {alone[n]->Problem()});
      EXPECT_EQ(list[n]->Gradients(), alone[n]->Gradients()) << n;
    }
  }
}

TEST_P(AttendGrad, OnlyWantedGradientsAreWritten) {
  const GradSizes sizes = {.H = 2,
                           .Nq = 70,
                           .Nk = 130,
                           .Nk2 = 9,
                           .D = 8,
                           .Dv = 8,
                           .slots = Slots::kGather,
                           .terms = kAllTerms};
  const GradCase all(sizes, 3);
  RunAttendGrad(device(), all.Params(), {all.Problem()});
  const char* names[] = {"dq",      "dk",     "dv",     "dk2",    "dv2", "dbias",
                         "dslopes", "dsinks", "dtable", "dq_rel", "dr"};
  for (size_t wanted = 0; wanted < std::size(names); ++wanted) {
    const GradCase c(sizes, 3), untouched(sizes, 3);
    AttendGradProblem p = c.Problem();
    View* views[] = {&p.dq,
                     &p.dk,
                     &p.dv,
                     &p.dterms.k2,
                     &p.dterms.v2,
                     &p.dterms.bias,
                     &p.dterms.alibi_slopes,
                     &p.dterms.sinks,
                     &p.dterms.table,
                     &p.dterms.q_rel,
                     &p.dterms.r};
    for (size_t n = 0; n < std::size(names); ++n) {
      if (n != wanted) *views[n] = View();
    }
    RunAttendGrad(device(), c.Params(), {p});
    for (size_t n = 0; n < std::size(names); ++n) {
      EXPECT_EQ(c[names[n]].Bytes(), (n == wanted ? all : untouched)[names[n]].Bytes())
          << names[n] << " when " << names[wanted] << " is wanted";
    }
  }
}

// The plain code that all others are held against: finite differences of its forward.
TEST(PlainAttendGrad, IsTheDerivativeOfTheForward) {
  for (Weighting weighting : {Weighting::kSoftmax, Weighting::kGelu, Weighting::kSoftplus}) {
    GradCase c(
        {.B = 2,
         .H = 4,
         .Hkv = 2,
         .Nq = 9,
         .Nk = 11,
         .Nk2 = 4,
         .D = 5,
         .Dv = 6,
         .slots = Slots::kGather,
         .terms = weighting == Weighting::kSoftmax ? kAllTerms : "bias slopes table labels cap",
         .weighting = weighting},
        21);
    const auto grads = PlainAttendGrad<double>(c.Params(), c.Problem());
    const PlainArray dout = c["dout"].Read();
    const auto loss = [&] {
      PlainAttendForward(c.Params(), c.Problem().forward);
      const PlainArray out = c["out"].Read();
      double sum = 0;
      for (size_t n = 0; n < out.values.size(); ++n) sum += out.values[n] * dout.values[n];
      if (weighting != Weighting::kSoftmax) return sum;
      const PlainArray lse = c["lse"].Read(), dlse = c["dlse"].Read();
      for (size_t n = 0; n < lse.values.size(); ++n) {
        if (std::isfinite(lse.values[n])) sum += lse.values[n] * dlse.values[n];
      }
      return sum;
    };
    const std::pair<const char*, const PlainGradient*> inputs[] = {
        {"q", &grads.dq},           {"k", &grads.dk},         {"v", &grads.dv},
        {"k2", &grads.dk2},         {"v2", &grads.dv2},       {"bias", &grads.dbias},
        {"slopes", &grads.dslopes}, {"sinks", &grads.dsinks}, {"table", &grads.dtable},
        {"q_rel", &grads.dq_rel},   {"r", &grads.dr}};
    for (const auto& [name, grad] : inputs) {
      if (grad->values.shape.rank == 0) continue;
      PlainArray values = c[name].Read();
      for (size_t n = 0; n < values.values.size(); n += values.values.size() / 7 + 1) {
        const double at = values.values[n];
        // A slope is multiplied by distances.
        const double step = std::string(name) == "slopes" ? 1.0 / 1024 : 1.0 / 128;
        values.values[n] = at + step;
        c[name].Write(values);
        const double above = loss();
        values.values[n] = at - step;
        c[name].Write(values);
        const double below = loss();
        values.values[n] = at;
        c[name].Write(values);
        const double truth = grad->values.values[n];
        EXPECT_NEAR((above - below) / (2 * step), truth, 1e-3 * (1 + std::fabs(truth)))
            << name << " " << n;
      }
    }
  }
}

// As column mass asks: dv of values of width 1, where out holds nothing.
TEST_P(AttendGrad, GradientsOfValuesNeedNoOut) {
  GradCase c({.H = 2, .Nq = 70, .Nk = 130, .D = 16, .Dv = 1, .slots = Slots::kInOrder}, 5);
  c["out"] = TestArray(kF32, {1, 2, 70, 1});
  c["v"] = TestArray(kF32, {1, 2, 130, 1});
  AttendGradProblem p = c.Problem();
  p.dq = p.dk = View();
  RunAttendGrad(device(), c.Params(), {p});
  const auto truth = PlainAttendGrad<double>(c.Params(), p);
  ExpectNear(c["dv"].Read(), truth.dv.values, 1e-5, 1e-6);
}

TEST_P(AttendGrad, AGatherOrderWithoutGathersIsRefused) {
  GradCase c({.Nq = 70, .Nk = 70, .D = 4, .Dv = 4, .slots = Slots::kGather}, 5);
  c.seqs[0].gathers = false;
  BufferPool pool;
  Stream stream(device(), &pool);
  const AttendGradProblem p = c.Problem();
  EXPECT_EQ(device().Run(stream, AttendGradArgs{.params = c.Params(), .problems = {p}}).code(),
            DeviceStatus::Code::kFailed);
}

}  // namespace
}  // namespace attnd::testing
