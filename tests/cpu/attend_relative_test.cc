// The relative term of attend over bands, where neighbouring tiles of keys share distances, against
// plain code.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "kernels/pattern/builder.h"
#include "kernels/pattern/predicates/windows.h"
#include "tests/cpu/attend_case.h"
#include "tests/cpu/attend_grad_case.h"
#include "tests/cpu/attend_terms_case.h"

namespace attnd::testing {
namespace {

constexpr int64_t kNone = kUnbounded;

// Nq queries after a memory of Nk - Nq keys: distances of visible pairs are those from `nearest` to
// nearest + window - 1 (kNone: no limit). L rows of r.
struct BandSizes {
  int64_t Nq, Nk, L, nearest = 0, window = kNone;
  int64_t offset = 0;  // is added to the positions of queries
  int64_t D = 16;

  std::string ToString() const {
    return ::testing::PrintToString(std::vector{Nq, Nk, L, nearest, window, offset, D});
  }
  std::shared_ptr<const Pattern> Band() const {
    PatternBuilder builder(Nq, Nk);
    const int64_t memory = Nk - Nq;
    const int64_t lo = window == kNone ? kNone : memory - nearest - window + 1;
    builder.Add(attnd::Band(lo, nearest == kNone ? kNone : memory - nearest));
    return std::make_shared<const Pattern>(std::move(builder).Build());
  }
};

// Ends of r, of the keys and of windows inside of tiles and at their ends.
std::vector<BandSizes> Bands() {
  std::vector<BandSizes> bands;
  for (int64_t L : {1, 2, 40, 64, 65, 150, 330, 1000}) bands.push_back({200, 330, L});
  for (int64_t Nq : {1, 17, 63, 64, 65, 129}) bands.push_back({Nq, Nq + 300, Nq + 300});
  for (int64_t Nk : {1, 63, 64, 65, 100, 128}) bands.push_back({Nk, Nk, Nk});
  for (int64_t window : {1, 17, 64, 65, 100, 193}) {
    bands.push_back({190, 320, 320, 0, window});
    bands.push_back({190, 320, 70, 0, window});
  }
  for (int64_t offset : {-1000, -70, -1, 5, 16, 64, 1000}) {
    bands.push_back({150, 260, 200, 0, kNone, offset});
    bands.push_back({150, 260, 200, kNone, kNone, offset});
  }
  bands.push_back({150, 260, 300, -20, 50});
  bands.push_back({150, 260, 300, 20, 150});
  for (int64_t D : {1, 15, 33, 64, 100}) bands.push_back({130, 300, 300, 0, kNone, 0, D});
  // More tiles than a block of keys, more than one share.
  bands.push_back({140, 1300, 1200});
  bands.push_back({140, 1300, 700, 0, 600});
  return bands;
}

TermsSizes ForwardSizes(const BandSizes& s) {
  TermsSizes sizes = {.H = 2, .Hkv = 1, .Nq = s.Nq, .Nk = s.Nk, .D = s.D, .Dv = 12};
  sizes.params.scale = 0.3;
  sizes.has_pattern = false;
  sizes.L = s.L;
  sizes.offset = s.Nk - s.Nq + s.offset;
  return sizes;
}
GradSizes BackwardSizes(const BandSizes& s) {
  return {.B = 2,
          .H = 2,
          .Hkv = 1,
          .Nq = s.Nq,
          .Nk = s.Nk,
          .D = s.D,
          .Dv = 12,
          .L = s.L,
          .terms = "relative",
          .offset = s.offset};
}
template <class Case>
void SetPattern(const BandSizes& s, Case* c) {
  const auto band = s.Band();
  for (AttendSeq& seq : c->seqs) {
    seq.pattern = band;
    seq.visible_pairs = static_cast<double>(band->visible_pairs);
    seq.visible_tiles = static_cast<double>(band->visible_tiles);
  }
}
std::unique_ptr<GradCase> Backward(const GradSizes& sizes, const BandSizes& s, unsigned seed) {
  auto c = std::make_unique<GradCase>(sizes, seed);
  SetPattern(s, c.get());
  PlainAttendForward(c->Params(), c->Problem().forward);
  return c;
}

class AttendRelative : public ::testing::TestWithParam<std::string> {
 protected:
  Device& device(int threads = 2) { return CpuOf(GetParam(), threads); }
};
INSTANTIATE_TEST_SUITE_P(Isa, AttendRelative, ::testing::ValuesIn(AvailableIsas()),
                         [](const auto& info) { return info.param; });

TEST_P(AttendRelative, ForwardAgreesWithPlainCode) {
  for (const BandSizes& s : Bands()) {
    SCOPED_TRACE(s.ToString());
    TermsCase c(ForwardSizes(s), 1);
    SetPattern(s, &c);
    RunTerms(device(), {&c});
    c.ExpectForward();
  }
}

TEST_P(AttendRelative, BackwardAgreesWithPlainCode) {
  for (const BandSizes& s : Bands()) {
    SCOPED_TRACE(s.ToString());
    const auto c = Backward(BackwardSizes(s), s, 1);
    RunAttendGrad(device(), c->Params(), {c->Problem()});
    c->ExpectGradients();
  }
}

TEST_P(AttendRelative, OtherTermsAndDtypesBesideIt) {
  const BandSizes s = {150, 290, 100, 0, 200};
  for (const char* terms : {"relative bias", "relative bias slopes sinks cap"}) {
    for (const char* repeats : {"", "b", "bhq"}) {
      for (DType dtype : {DType::kF32, DType::kBF16}) {
        SCOPED_TRACE(::testing::Message() << terms << " repeats " << repeats << Name(dtype));
        GradSizes sizes = BackwardSizes(s);
        sizes.terms = terms;
        sizes.repeats = repeats;
        sizes.hidden_bias = 0.1;
        sizes.padded = true;
        sizes.q = sizes.k = sizes.v = sizes.out = dtype;
        sizes.memory = Memory::kPitched;
        const auto c = Backward(sizes, s, 3);
        RunAttendGrad(device(), c->Params(), {c->Problem()});
        c->ExpectGradients();
      }
    }
  }
}

// Slots that follow one another share distances, too; some of these do and some do not.
TEST_P(AttendRelative, GatheredKeysInOrder) {
  for (int64_t skipped : {0, 3, 16, 64}) {
    SCOPED_TRACE(skipped);
    const int64_t Nk = 200, Nk2 = 150, Nq = 140;
    const BandSizes s = {Nq, Nk + Nk2 - skipped, 0, 0, 250};
    std::vector<int32_t> rows(static_cast<size_t>(s.Nk));
    std::iota(rows.begin(), rows.begin() + 100, 0);
    std::iota(rows.begin() + 100, rows.end(), 100 + static_cast<int32_t>(skipped));
    Pattern pattern = *s.Band();
    pattern.key_rows = rows;
    const auto shared = std::make_shared<const Pattern>(std::move(pattern));
    TermsSizes sizes = ForwardSizes({Nq, Nk, Nk + Nk2});
    sizes.gathers_keys = true;
    sizes.has_pattern = true;
    sizes.Nk2 = Nk2;
    sizes.offset = Nk + Nk2 - Nq;
    TermsCase forward(sizes, 5);
    for (AttendSeq& seq : forward.seqs) seq.pattern = shared;
    RunTerms(device(), {&forward});
    forward.ExpectForward();
    GradSizes grad = BackwardSizes({Nq, Nk, Nk + Nk2});
    grad.Nk2 = Nk2;
    grad.slots = Slots::kGather;
    grad.offset = Nk2;
    GradCase backward(grad, 5);
    for (AttendSeq& seq : backward.seqs) seq.pattern = shared;
    PlainAttendForward(backward.Params(), backward.Problem().forward);
    RunAttendGrad(device(), backward.Params(), {backward.Problem()});
    backward.ExpectGradients();
  }
}

// Rows of r at distances of invisible pairs lie among those that products read.
TEST_P(AttendRelative, UnseenDistancesMayHoldAnything) {
  const BandSizes s = {150, 290, 400, 0, 90};
  const auto hide = [](TestArray* r) {
    PlainArray values = r->Read();
    ForEachIndex(values.shape, [&](const std::vector<int64_t>& at) {
      if (at[2] >= 90) values.At(at) = at[2] % 2 == 0 ? NAN : INFINITY;
    });
    r->Write(values);
  };
  TermsCase forward(ForwardSizes(s), 2);
  SetPattern(s, &forward);
  hide(&forward.r);
  RunTerms(device(), {&forward});
  forward.ExpectForward();
  const auto clean = Backward(BackwardSizes(s), s, 2), backward = Backward(BackwardSizes(s), s, 2);
  hide(&(*backward)["r"]);
  for (const auto* c : {&clean, &backward}) {
    RunAttendGrad(device(), (*c)->Params(), {(*c)->Problem()});
  }
  clean->ExpectGradients();
  for (const char* name : {"dq", "dk", "dv", "dq_rel", "dr"}) {
    SCOPED_TRACE(name);
    ExpectNear((*backward)[name].Read(), (*clean)[name].Read(), 1e-5, 1e-5);
  }
}

// Every pair is visible, but not every query has a pair at each distance of its tile.
TEST_P(AttendRelative, ADistanceReachesOnlyQueriesThatHaveIt) {
  const BandSizes s = {64, 64, 64};
  GradSizes sizes = BackwardSizes(s);
  sizes.B = 1;
  GradCase c(sizes, 4);
  PlainArray r = c["r"].Read();
  for (int64_t d = 0; d < s.D; ++d) r.At({0, 0, 40, d}) = NAN;
  c["r"].Write(r);
  RunAttendGrad(device(), c.Params(), {c.Problem()});
  const PlainArray dq_rel = c["dq_rel"].Read(), dr = c["dr"].Read();
  for (int64_t i = 0; i < 64; ++i) {
    for (int64_t d = 0; d < s.D; ++d) {
      EXPECT_EQ(std::isnan(dq_rel.At({0, 0, i, d})), i >= 40) << i;
      EXPECT_EQ(std::isnan(dr.At({0, 0, i, d})), i == 40) << i;
      EXPECT_FALSE(std::isnan(dq_rel.At({0, 1, i, d}))) << i;
    }
  }
}

TEST_P(AttendRelative, AProblemDoesNotDependOnItsListOrOnThreadsBitForBit) {
  const auto bands = Bands();
  const auto forward = [&](const BandSizes& s) {
    auto c = std::make_unique<TermsCase>(ForwardSizes({s.Nq, s.Nk, s.L, s.nearest, s.window}), 6);
    SetPattern(s, c.get());
    return c;
  };
  std::vector<std::unique_ptr<TermsCase>> list, alone;
  std::vector<std::unique_ptr<GradCase>> gradients, gradients_alone;
  std::vector<const TermsCase*> all;
  std::vector<AttendGradProblem> all_gradients;
  for (const BandSizes& s : bands) {
    if (s.D != 16) continue;
    list.push_back(forward(s));
    alone.push_back(forward(s));
    all.push_back(list.back().get());
    gradients.push_back(Backward(BackwardSizes(s), s, 6));
    gradients_alone.push_back(Backward(BackwardSizes(s), s, 6));
    all_gradients.push_back(gradients.back()->Problem());
  }
  RunTerms(device(2), all);
  RunAttendGrad(device(2), gradients[0]->Params(), all_gradients);
  for (size_t n = 0; n < list.size(); ++n) {
    RunTerms(device(1), {alone[n].get()});
    EXPECT_EQ(list[n]->Outputs(), alone[n]->Outputs()) << list[n]->sizes.ToString();
    RunAttendGrad(device(1), gradients_alone[n]->Params(), {gradients_alone[n]->Problem()});
    EXPECT_EQ(gradients[n]->Gradients(), gradients_alone[n]->Gradients()) << n;
  }
}

}  // namespace
}  // namespace attnd::testing
