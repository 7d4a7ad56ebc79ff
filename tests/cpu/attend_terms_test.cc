// Attend on the CPU with every term of its contract, alone and together.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/cpu/attend_terms_case.h"

namespace attnd::testing {
namespace {

constexpr DType kFloats[] = {DType::kF32, DType::kF16, DType::kBF16};

class AttendTerms : public ::testing::TestWithParam<std::string> {
 protected:
  Device& device(int threads = 2) { return CpuOf(GetParam(), threads); }
  void Check(const TermsSizes& sizes, unsigned seed = 1) {
    SCOPED_TRACE(sizes.ToString());
    const TermsCase c(sizes, seed);
    RunTerms(device(), {&c});
    c.ExpectForward();
  }
};
INSTANTIATE_TEST_SUITE_P(Isa, AttendTerms, ::testing::ValuesIn(AvailableIsas()),
                         [](const auto& info) { return info.param; });

// Every term of softmax attention at once.
TermsSizes Everything() {
  return {.params = {.scale = 0.3, .softcap = 4},
          .per_head = true,
          .padded = true,
          .gathers_queries = true,
          .gathers_keys = true,
          .Nk2 = 20,
          .key_bias = true,
          .tile_bias = true,
          .bias = true,
          .alibi = true,
          .sinks = true,
          .table = true,
          .L = 40,
          .offset = 61};
}

TEST_P(AttendTerms, EachTermAloneAgreesWithPlainCode) {
  for (bool has_pattern : {false, true}) {
    for (bool padded : {false, true}) {
      const TermsSizes base = {
          .params = {.scale = 0.4}, .has_pattern = has_pattern, .padded = padded, .offset = 61};
      const auto check = [&](const auto& change) {
        TermsSizes sizes = base;
        change(sizes);
        Check(sizes);
      };
      check([](TermsSizes&) {});
      check([](TermsSizes& s) { s.params.softcap = 1.5; });
      check([](TermsSizes& s) { s.bias = true; });
      check([](TermsSizes& s) { s.alibi = true; });
      check([](TermsSizes& s) { s.sinks = true; });
      for (int64_t L : {1, 5, 64, 200}) check([&](TermsSizes& s) { s.L = L; });
      if (!has_pattern) continue;
      check([](TermsSizes& s) { s.key_bias = true; });
      check([](TermsSizes& s) { s.tile_bias = true; });
      check([](TermsSizes& s) { s.table = true; });
      check([](TermsSizes& s) {
        s.table = true;
        s.params.softcap = 1.5;
        s.params.cap_table = false;
      });
      check([](TermsSizes& s) { s.per_head = true; });
      check([](TermsSizes& s) { s.gathers_queries = true; });
      check([](TermsSizes& s) { s.gathers_keys = true; });
      check([](TermsSizes& s) {
        s.gathers_keys = true;
        s.Nk2 = 33;
      });
    }
  }
}

TEST_P(AttendTerms, AllTermsTogetherAgreeWithPlainCode) {
  unsigned seed = 0;
  for (int64_t Nq : {1, 63, 64, 65, 131}) {
    for (int64_t Nk : {1, 64, 67, 330}) {
      TermsSizes sizes = Everything();
      sizes.Nq = Nq;
      sizes.Nk = Nk;
      sizes.padded = seed % 2 == 0;
      sizes.L = 1 + seed * 7;
      Check(sizes, ++seed);
    }
  }
}

TEST_P(AttendTerms, EveryWeightingAgreesWithPlainCode) {
  for (int weighting = 1; weighting <= static_cast<int>(Weighting::kSigmoid); ++weighting) {
    for (bool has_terms : {false, true}) {
      TermsSizes sizes = has_terms ? Everything() : TermsSizes();
      sizes.params.weighting = static_cast<Weighting>(weighting);
      sizes.sinks = false;
      sizes.row_weight = has_terms;
      Check(sizes, static_cast<unsigned>(weighting));
    }
  }
}

TEST_P(AttendTerms, EveryMixOfDtypesAgreesWithPlainCode) {
  for (DType q : kFloats) {
    for (DType k : kFloats) {
      for (int mix = 0; mix < 3; ++mix) {
        TermsSizes sizes = mix == 0 ? TermsSizes() : Everything();
        sizes.B = 1;
        sizes.q = q;
        sizes.k = k;
        sizes.v = kFloats[(static_cast<int>(k) + mix) % 3];
        sizes.out = kFloats[(static_cast<int>(q) + mix) % 3];
        sizes.bias_dtype = kFloats[mix];
        Check(sizes);
      }
    }
  }
}

TEST_P(AttendTerms, BiasOfAnyStridesAgreesWithPlainCode) {
  for (DType dtype : kFloats) {
    for (Memory memory : {Memory::kDense, Memory::kPitched, Memory::kTransposed}) {
      Check({.bias = true, .bias_dtype = dtype, .bias_memory = memory});
      Check({.gathers_keys = true, .bias = true, .bias_dtype = dtype, .bias_memory = memory});
    }
  }
  for (int repeats = 1; repeats < 16; ++repeats) Check({.bias = true, .bias_repeats = repeats});
}

// Scores of hundreds, and a sink that is far above or below all of them.
TEST_P(AttendTerms, SinksCountInTheMaximumAndInLse) {
  for (double sink : {-300.0, 0.0, 300.0, -double{INFINITY}}) {
    TermsCase c({.params = {.scale = 10}, .sinks = true}, 3);
    c.sinks.Write(PlainArray({2, 4}, sink));
    RunTerms(device(), {&c});
    c.ExpectForward();
    // Row 5 sees nothing but the sink.
    EXPECT_EQ(c.lse.Read().At({0, 0, 5}), sink);
  }
}

// Row 5 sees no key, so that its weight of 1 / 0 must not meet its sum of 0.
TEST_P(AttendTerms, AnInfiniteRowWeightReachesNoRowWithoutKeys) {
  TermsCase c({.params = {.weighting = Weighting::kRelu}, .row_weight = true}, 3);
  PlainArray weight(c.row_weight.view().shape, 0.5);
  for (int64_t h = 0; h < 4; ++h) weight.At({0, h, 5}) = INFINITY;
  c.row_weight.Write(weight);
  RunTerms(device(), {&c});
  c.ExpectForward();
  EXPECT_EQ(c.out.Read().At({0, 0, 5, 0}), 0);
}

// Values and keys with NaN and Inf that only some rows see, through masks or a bias of -inf.
TEST_P(AttendTerms, OddNumbersReachOnlyRowsThatSeeThem) {
  for (bool gathers : {false, true}) {
    for (bool has_pattern : {false, true}) {
      for (double odd : {double{NAN}, double{INFINITY}}) {
        for (int weighting : {0, 1}) {
          TermsCase c({.params = {.weighting = static_cast<Weighting>(weighting)},
                       .has_pattern = has_pattern,
                       .gathers_keys = has_pattern && gathers,
                       .Nk2 = has_pattern && gathers ? 9 : 0,
                       .bias = true},
                      5);
          for (TestArray* array : {&c.k, &c.v}) {
            PlainArray values = array->Read();
            values.At({0, 0, 17, 3}) = odd;
            values.At({1, 1, 90, 7}) = odd;
            array->Write(values);
          }
          RunTerms(device(), {&c});
          // Only where numbers are: an infinite score has no order of rounding to compare with.
          const PlainArray truth =
              PlainAttendTerms<double>(c.sizes.params, c.Problem()).Forward().out;
          const PlainArray ours = c.out.Read();
          int finite = 0;
          for (size_t i = 0; i < truth.values.size(); ++i) {
            EXPECT_EQ(std::isfinite(ours.values[i]), std::isfinite(truth.values[i])) << i;
            if (!std::isfinite(truth.values[i])) continue;
            ++finite;
            // The largest sums are of some thousands.
            EXPECT_NEAR(ours.values[i], truth.values[i], 2e-4) << i;
          }
          EXPECT_GT(finite, 1000);
          EXPECT_LT(finite, static_cast<int>(truth.values.size()));
        }
      }
    }
  }
}

// Given: few queries on so many keys that their rows are split.
std::vector<TermsSizes> LongSizes() {
  const TermsSizes one = {.B = 1, .H = 2, .Hkv = 1, .Nq = 3, .Nk = 9000, .D = 8, .Dv = 8};
  TermsSizes plain = one, terms = one, relu = one;
  plain.has_pattern = false;
  plain.sinks = true;
  terms.per_head = true;
  terms.gathers_keys = true;
  terms.alibi = true;
  terms.Nk2 = 100;
  terms.params.softcap = 3;
  relu.params.weighting = Weighting::kGelu;
  relu.row_weight = true;
  return {plain, terms, relu};
}

TEST_P(AttendTerms, LongRowsAreSplitAndAgreeWithPlainCode) {
  for (const TermsSizes& sizes : LongSizes()) {
    SCOPED_TRACE(sizes.ToString());
    TermsCase whole(sizes, 1), split(sizes, 1), again(sizes, 1);
    for (TermsCase* c : {&split, &again}) c->seqs[0].visible_tiles = 300;
    RunTerms(device(2), {&whole});
    RunTerms(device(2), {&split});
    RunTerms(device(1), {&again});
    whole.ExpectForward();
    split.ExpectForward();
    EXPECT_EQ(split.Outputs(), again.Outputs());
    // Other sums, so other bits: the row was split.
    EXPECT_NE(split.Outputs(), whole.Outputs());
  }
}

TEST_P(AttendTerms, AProblemDoesNotDependOnItsListOrOnThreadsBitForBit) {
  std::vector<std::unique_ptr<TermsCase>> list, alone;
  std::vector<const TermsCase*> all;
  for (unsigned n = 0; n < 20; ++n) {
    TermsSizes sizes = Everything();
    sizes.B = 1;
    sizes.Nq = n * 37 % 190;
    sizes.Nk = 1 + n * 53 % 400;
    sizes.gathers_queries = n % 2 == 0;
    sizes.per_head = n % 3 == 0;
    list.push_back(std::make_unique<TermsCase>(sizes, n));
    alone.push_back(std::make_unique<TermsCase>(sizes, n));
    all.push_back(list.back().get());
  }
  const int64_t before = device(2).launches();
  RunTerms(device(2), all);
  EXPECT_EQ(device(2).launches(), before + 1);
  for (size_t n = 0; n < list.size(); ++n) {
    RunTerms(device(1), {alone[n].get()});
    EXPECT_EQ(list[n]->Outputs(), alone[n]->Outputs()) << list[n]->sizes.ToString();
  }
}

}  // namespace
}  // namespace attnd::testing
