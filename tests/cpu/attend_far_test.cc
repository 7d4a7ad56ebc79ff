// Attend at positions far from all keys: beyond 32 bits, and where a slope needs more than float32.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "tests/cpu/attend_grad_case.h"
#include "tests/cpu/attend_terms_case.h"

namespace attnd::testing {
namespace {

constexpr int64_t kFar = int64_t{1} << 30;
// At 2^30 - 20 some queries of a tile lie below 2^30, which is where int32 positions are cut.
constexpr int64_t kOffsets[] = {kFar - 20,    20 - kFar, 2 * kFar - 1,
                                1 - 2 * kFar, 5 * kFar,  -5 * kFar};

// So that the far distance adds a few units to a score.
double SlopeAt(int64_t offset) { return 3 / std::fabs(static_cast<double>(offset)); }

class AttendFar : public ::testing::TestWithParam<std::string> {
 protected:
  Device& device() { return CpuOf(GetParam(), 2); }
  void ExpectForward(TermsSizes sizes, int64_t offset) {
    sizes.offset = offset;
    sizes.slope = SlopeAt(offset);
    SCOPED_TRACE(sizes.ToString());
    const TermsCase c(sizes, 1);
    RunTerms(device(), {&c});
    c.ExpectForward();
  }
  void ExpectGradients(GradSizes sizes, int64_t offset) {
    sizes.offset = offset;
    sizes.slope = SlopeAt(offset);
    SCOPED_TRACE(::testing::Message() << "offset " << offset << " slots "
                                      << static_cast<int>(sizes.slots) << " " << sizes.terms);
    const GradCase c(sizes, 1);
    RunAttendGrad(device(), c.Params(), {c.Problem()});
    c.ExpectGradients();
  }
};
INSTANTIATE_TEST_SUITE_P(Isa, AttendFar, ::testing::ValuesIn(AvailableIsas()),
                         [](const auto& info) { return info.param; });

TEST_P(AttendFar, Forward) {
  for (int64_t offset : kOffsets) {
    ExpectForward({.alibi = true}, offset);
    ExpectForward({.gathers_queries = true, .gathers_keys = true, .alibi = true}, offset);
    ExpectForward({.listed = 40, .alibi = true}, offset);
    ExpectForward({.L = 40}, offset);
  }
}

TEST_P(AttendFar, Backward) {
  const GradSizes sizes = {.H = 2, .Nq = 70, .Nk = 90, .D = 10, .Dv = 6};
  for (int64_t offset : kOffsets) {
    for (Slots slots : {Slots::kNone, Slots::kInOrder, Slots::kGather, Slots::kListed}) {
      for (const char* terms : {"slopes", "relative"}) {
        GradSizes some = sizes;
        some.slots = slots;
        some.terms = slots == Slots::kListed ? "slopes" : terms;
        ExpectGradients(some, offset);
      }
    }
  }
}

// With one key and q = 0, lse is -slope distance: a product that is rounded once.
TEST_P(AttendFar, SlopesKeepTheirPrecision) {
  constexpr float kSlopes[] = {0x1.7253a4p-19f, 0x1.7d3555p-13f, 0x1.6d3bap-7f, 0x1.743a6ap-1f};
  constexpr int64_t kDistance = 5 << 18, kHeads = std::size(kSlopes);
  auto listed = std::make_shared<Pattern>(Pattern{.Nq = 1, .Nk = 1, .visible_pairs = 1});
  listed->keys_of = listed->queries_of = {.begin = {0, 1}, .columns = {0}};
  for (int64_t offset : {kDistance, -kDistance}) {
    for (bool is_listed : {false, true}) {
      TermsCase c({.B = 1,
                   .H = kHeads,
                   .Hkv = 1,
                   .Nq = 1,
                   .Nk = 1,
                   .has_pattern = false,
                   .alibi = true,
                   .offset = offset},
                  1);
      c.seqs[0].is_listed = is_listed;
      if (is_listed) c.seqs[0].pattern = listed;
      c.q.Write(PlainArray(c.q.view().shape, 0));
      PlainArray slopes(c.slopes.view().shape);
      std::copy(std::begin(kSlopes), std::end(kSlopes), slopes.values.begin());
      c.slopes.Write(slopes);
      RunTerms(device(), {&c});
      const PlainArray lse = c.lse.Read();
      for (size_t h = 0; h < kHeads; ++h) {
        EXPECT_EQ(lse.values[h], static_cast<float>(-double{kSlopes[h]} * kDistance)) << kSlopes[h];
      }
    }
  }
}

}  // namespace
}  // namespace attnd::testing
