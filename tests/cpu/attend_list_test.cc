// attend over listed pairs, forward and backward, against plain code.
#include <gtest/gtest.h>

#include <array>

#include "tests/cpu/attend_grad_case.h"
#include "tests/cpu/attend_terms_case.h"

namespace attnd::testing {
namespace {

constexpr DType kFloats[] = {DType::kF32, DType::kF16, DType::kBF16};

class AttendList : public ::testing::TestWithParam<std::string> {
 protected:
  Device& device(int threads = 2) { return CpuOf(GetParam(), threads); }

  void ExpectForward(const TermsSizes& sizes, unsigned seed = 1) {
    SCOPED_TRACE(sizes.ToString());
    const TermsCase c(sizes, seed);
    RunTerms(device(), {&c});
    c.ExpectForward();
  }
  void ExpectGradients(GradSizes sizes, unsigned seed = 1) {
    sizes.slots = Slots::kListed;
    SCOPED_TRACE(::testing::Message() << "Nq" << sizes.Nq << " Nk" << sizes.Nk << " D" << sizes.D
                                      << " terms: " << sizes.terms << " repeats " << sizes.repeats);
    const GradCase c(sizes, seed);
    RunAttendGrad(device(), c.Params(), {c.Problem()});
    c.ExpectGradients();
  }
};
INSTANTIATE_TEST_SUITE_P(Isa, AttendList, ::testing::ValuesIn(AvailableIsas()),
                         [](const auto& info) { return info.param; });

TEST_P(AttendList, ForwardAtEverySize) {
  unsigned seed = 0;
  for (int64_t Nq : {1, 64, 131}) {
    for (int64_t Nk : {1, 67, 330}) {
      for (int64_t listed : {1, 5, 40, 150}) {
        const int64_t D = std::array{1, 16, 20, 64, 100}[seed % 5];
        ExpectForward({.Nq = Nq,
                       .Nk = Nk,
                       .D = D,
                       .Dv = seed % 2 == 0 ? D : 33,
                       .per_head = seed % 3 == 0,
                       .padded = seed % 2 == 0,
                       .listed = listed},
                      ++seed);
      }
    }
  }
}

TEST_P(AttendList, ForwardWithTerms) {
  const TermsSizes base{.params = {.scale = 0.4}, .padded = true, .listed = 90, .offset = 61};
  const auto check = [&](const auto& change) {
    TermsSizes sizes = base;
    change(sizes);
    ExpectForward(sizes);
  };
  check([](TermsSizes& s) { s.params.softcap = 1.5; });
  check([](TermsSizes& s) { s.bias = true; });
  check([](TermsSizes& s) { s.alibi = true; });
  check([](TermsSizes& s) { s.sinks = true; });
  for (const DType dtype : kFloats) {
    check([&](TermsSizes& s) {
      s.q = s.out = dtype;
      s.k = s.v = s.bias_dtype = kFloats[(static_cast<int>(dtype) + 1) % 3];
      s.params.softcap = 3;
      s.bias = s.alibi = s.sinks = s.per_head = true;
      s.bias_repeats = 2;
    });
  }
}

TEST_P(AttendList, Gradients) {
  unsigned seed = 0;
  for (int64_t Nq : {0, 1, 64, 131}) {
    for (int64_t Nk : {0, 1, 67, 330}) {
      ExpectGradients({.B = 2,
                       .H = 4,
                       .Hkv = 2,
                       .Nq = Nq,
                       .Nk = Nk,
                       .D = std::array{1, 16, 20, 64, 100}[seed % 5],
                       .Dv = 24,
                       .padded = seed % 2 == 0,
                       .terms = seed % 2 == 0 ? "slopes sinks" : ""},
                      ++seed);
    }
  }
}

TEST_P(AttendList, GradientsOfTerms) {
  unsigned seed = 50;
  for (const char* terms : {"bias", "slopes", "sinks", "cap", "cap bias slopes sinks"}) {
    for (const char* repeats : {"", "b", "h", "bh", "q", "k", "bhqk"}) {
      ExpectGradients({.B = 2,
                       .H = 2,
                       .Hkv = 1,
                       .Nq = 70,
                       .Nk = 131,
                       .D = 20,
                       .Dv = 12,
                       .padded = true,
                       .terms = terms,
                       .repeats = repeats,
                       .hidden_bias = 0.1},
                      ++seed);
    }
  }
  for (const DType dtype : kFloats) {
    ExpectGradients({.H = 2,
                     .Nq = 70,
                     .Nk = 131,
                     .D = 20,
                     .Dv = 12,
                     .q = dtype,
                     .k = dtype,
                     .v = dtype,
                     .out = dtype,
                     .terms = "cap slopes"},
                    ++seed);
  }
}

// Several blocks of listed rows and several items, on both sides.
TEST_P(AttendList, LongSides) {
  ExpectForward({.B = 1, .H = 1, .Hkv = 1, .Nq = 700, .Nk = 40000, .D = 3, .Dv = 2, .listed = 90});
  ExpectGradients({.Nq = 700, .Nk = 40000, .D = 3, .Dv = 2, .listed = 90});
  ExpectGradients({.Nq = 40000, .Nk = 500, .D = 3, .Dv = 2, .listed = 3});
}

// The same bits alone and in a batch, on any number of threads; listed and tiled problems mix.
TEST_P(AttendList, BatchedEqualsAlone) {
  const TermsSizes sizes{.Nq = 200, .Nk = 330, .bias = true, .alibi = true, .sinks = true};
  std::vector<TermsCase> batch, alone;
  for (unsigned n = 0; n < 6; ++n) {
    TermsSizes own = sizes;
    own.listed = n % 2 == 0 ? 30 : 0;
    own.Nq = 200 - 7 * n;
    batch.emplace_back(own, n);
    alone.emplace_back(own, n);
  }
  std::vector<const TermsCase*> cases;
  for (const TermsCase& c : batch) cases.push_back(&c);
  RunTerms(device(2), cases);
  for (size_t n = 0; n < alone.size(); ++n) {
    RunTerms(device(1), {&alone[n]});
    EXPECT_EQ(alone[n].Outputs(), batch[n].Outputs()) << n;
  }
}

// A launch of the CUDA device takes 16384 keys of a row, its gradients 4096 pairs.
TEST_P(AttendList, LongListsAreWholeOverSeveralLaunches) {
  ExpectForward({.B = 2, .H = 2, .Hkv = 2, .Nq = 3, .Nk = 330, .D = 5, .Dv = 33, .listed = 60000});
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    ExpectGradients({.B = 2,
                     .H = 2,
                     .Hkv = 1,
                     .Nq = 4,
                     .Nk = 5,
                     .D = 3,
                     .Dv = 2,
                     .listed = 9000,
                     .q = dtype,
                     .k = dtype,
                     .v = dtype,
                     .out = dtype,
                     .terms = "slopes"});
  }
}

TEST_P(AttendList, BatchedGradientsEqualAlone) {
  const GradSizes sizes{.H = 2,
                        .Hkv = 1,
                        .Nq = 200,
                        .Nk = 330,
                        .D = 16,
                        .Dv = 16,
                        .slots = Slots::kListed,
                        .terms = "bias slopes sinks"};
  std::vector<GradCase> batch, alone;
  for (unsigned n = 0; n < 4; ++n) {
    GradSizes own = sizes;
    if (n % 2 == 1) own.slots = Slots::kInOrder;
    batch.emplace_back(own, n);
    alone.emplace_back(own, n);
  }
  std::vector<AttendGradProblem> problems;
  for (const GradCase& c : batch) problems.push_back(c.Problem());
  RunAttendGrad(device(2), batch[0].Params(), problems);
  for (size_t n = 0; n < alone.size(); ++n) {
    RunAttendGrad(device(1), alone[n].Params(), {alone[n].Problem()});
    EXPECT_EQ(alone[n].Gradients(), batch[n].Gradients()) << n;
  }
}

}  // namespace
}  // namespace attnd::testing
