#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/cpu/attend_case.h"

namespace attnd {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

class Attend : public testing::TestWithParam<std::string> {
 protected:
  Device& device(int threads = 2) { return CpuOf(GetParam(), threads); }
};
INSTANTIATE_TEST_SUITE_P(Isa, Attend, testing::ValuesIn(AvailableIsas()),
                         [](const auto& info) { return info.param; });

void ExpectPlain(Device& device, const AttendCase& c) {
  SCOPED_TRACE(c.sizes.ToString());
  RunAttend(device, {&c}, /*backward=*/true);
  c.ExpectForward();
  c.ExpectBackward();
}

TEST_P(Attend, AgreesWithPlainCodeAtEverySizeAroundATile) {
  const int64_t lengths[] = {0, 1, 63, 64, 65, 131};
  const int64_t widths[] = {1, 3, 32, 64, 80, 128};
  const DType dtypes[] = {DType::kF32, DType::kF16, DType::kBF16};
  uint64_t n = 0;
  for (int64_t Nq : lengths) {
    for (int64_t Nk : lengths) {
      for (int mask = 0; mask < 4; ++mask, ++n) {
        ExpectPlain(device(), AttendCase({.Nq = Nq,
                                          .Nk = Nk,
                                          .D = widths[n % 6],
                                          .Dv = widths[n / 6 % 6],
                                          .dtype = dtypes[n % 3],
                                          .mask = static_cast<MaskKind>(mask)},
                                         n));
      }
    }
  }
}

TEST_P(Attend, AgreesWithPlainCodeForGroupsOfHeadsAndPadding) {
  uint64_t n = 100;
  for (Layout layout : {Layout::kBHND, Layout::kBNHD}) {
    for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (int mask = 0; mask < 4; ++mask, ++n) {
        ExpectPlain(device(), AttendCase({.B = 3,
                                          .H = 6,
                                          .Hkv = n % 2 == 0 ? 2 : 3,
                                          .Nq = 70,
                                          .Nk = 131,
                                          .D = 20,
                                          .Dv = 33,
                                          .dtype = dtype,
                                          .layout = layout,
                                          .mask = static_cast<MaskKind>(mask),
                                          .padded = true},
                                         n));
      }
    }
  }
}

// Invisible pairs are left out along every edge of a tile.
TEST_P(Attend, AgreesWithPlainCodeForBandsThatEndAnywhereInATile) {
  for (int64_t edge = 0; edge < kTile; ++edge) {
    // Keys from query + 40 + edge on, up to 172 of them; fewer than 17 where edge is small.
    const int64_t first = 40 + edge, last = first + 3 * (edge % 17) + edge * edge / 32;
    const auto sees = [=](int64_t i, int64_t j) { return i + first <= j && j <= i + last; };
    for (bool has_odd : {false, true}) {
      AttendCase c(
          {.Nq = 100, .Nk = 330, .D = 20, .Dv = 24, .mask = MaskKind::kGiven, .sees = sees}, edge);
      // What no query sees may be anything, whatever else its tile holds.
      for (int64_t j = 0; has_odd && j < 330; ++j) {
        if (first <= j && j <= 99 + last) continue;
        for (int64_t d = 0; d < 20; ++d) c.k.Set(0, 0, j, d, kNaN);
        for (int64_t d = 0; d < 24; ++d) c.v.Set(0, 0, j, d, j % 2 == 0 ? kNaN : kInf);
      }
      ExpectPlain(device(), c);
    }
  }
}

// Every few queries have a stretch of keys of their own: strips of a tile see nothing, the same, or
// what lies apart.
TEST_P(Attend, AgreesWithPlainCodeForStretchesOfKeys) {
  for (int64_t seed = 0; seed < 12; ++seed) {
    const int64_t together = int64_t{1} << (seed % 6);
    const auto sees = [=](int64_t i, int64_t j) {
      const int64_t number = (i / together * 2654435761 + seed * 40503) % 1000003;
      const int64_t first = number % 300, count = number / 300 % 90;
      return number % 5 != 0 && first <= j && j < first + count;
    };
    ExpectPlain(device(), AttendCase({.H = 2,
                                      .Hkv = 1,
                                      .Nq = 200,
                                      .Nk = 333,
                                      .D = 33,
                                      .Dv = 40,
                                      .dtype = seed % 3 == 0 ? DType::kBF16 : DType::kF32,
                                      .mask = MaskKind::kGiven,
                                      .sees = sees},
                                     seed));
  }
}

// More key tiles than are normalised together, more than one share of keys, and so many query tiles
// that several make one item.
TEST_P(Attend, AgreesWithPlainCodeOverManyTiles) {
  for (int mask = 0; mask < 4; ++mask) {
    ExpectPlain(device(1), AttendCase({.H = 3,
                                       .Hkv = 1,
                                       .Nq = 330,
                                       .Nk = 1111,
                                       .D = 32,
                                       .Dv = 48,
                                       .mask = static_cast<MaskKind>(mask)},
                                      mask));
  }
}

// Without a mask keys in lanes, up to 256 of them; whole tiles of queries, parts of one and several
// items.
TEST_P(Attend, AgreesWithPlainCodeForFewKeys) {
  const int64_t widths[] = {64, 20, 1, 128, 33, 16};
  const DType dtypes[] = {DType::kF32, DType::kF32, DType::kF16, DType::kBF16};
  uint64_t n = 400;
  for (int64_t Nk : {1, 3, 15, 16, 17, 64, 65, 255, 256, 257, 300}) {
    for (int64_t Nq : {1, 5, 64, 66, 330}) {
      ExpectPlain(device(), AttendCase({.B = 1 + static_cast<int64_t>(n % 2),
                                        .H = 2,
                                        .Hkv = 1 + static_cast<int64_t>(n % 2),
                                        .Nq = Nq,
                                        .Nk = Nk,
                                        .D = widths[n % 6],
                                        .Dv = widths[n / 6 % 6],
                                        .dtype = dtypes[n % 4],
                                        .layout = n % 3 == 0 ? Layout::kBNHD : Layout::kBHND,
                                        .padded = n % 5 == 0},
                                       n));
      ++n;
    }
  }
}

// One query of NaN leaves the others as they are.
TEST_P(Attend, AnOddQueryOfFewKeysHarmsNoOther) {
  AttendCase odd({.Nq = 70, .Nk = 100, .D = 16, .Dv = 20}, 5);
  const AttendCase clean({.Nq = 70, .Nk = 100, .D = 16, .Dv = 20}, 5);
  for (int64_t d = 0; d < 16; ++d) odd.q.Set(0, 0, 33, d, kNaN);
  RunAttend(device(), {&odd}, /*backward=*/false);
  RunAttend(device(), {&clean}, /*backward=*/false);
  for (int64_t i = 0; i < 70; ++i) {
    for (int64_t d = 0; d < 20; ++d) {
      const float out = odd.out.Get(0, 0, i, d);
      EXPECT_TRUE(i == 33 ? std::isnan(out) : out == clean.out.Get(0, 0, i, d)) << i;
    }
  }
}

// Scores of hundreds: the running maximum must move, and weights underflow to exactly 0.
TEST_P(Attend, AgreesWithPlainCodeForLargeScores) {
  AttendCase c({.Nq = 65, .Nk = 400, .D = 16, .Dv = 16}, 1);
  c.scale = 30;
  ExpectPlain(device(), c);
}

TEST_P(Attend, InvisiblePairsContributeNothingWhateverTheyHold) {
  // Given: keys, values, queries and dout rows with NaN and Inf that few rows or none may see.
  for (float bad : {kNaN, kInf, -kInf}) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      AttendCase c({.H = 2,
                    .Hkv = 1,
                    .Nq = 130,
                    .Nk = 200,
                    .D = 24,
                    .Dv = 40,
                    .dtype = dtype,
                    .mask = MaskKind::kCausal},
                   7);
      // Causal with offset 70: key 199 is seen by query 129 only, key 150 from query 80 on.
      for (int64_t h = 0; h < 2; ++h) c.dout.Set(0, h, 5, 3, bad);
      c.v.Set(0, 0, 199, 7, bad);
      c.v.Set(0, 0, 150, 39, bad);
      c.k.Set(0, 0, 199, 2, bad);
      c.q.Set(0, 1, 3, 0, bad);
      // When both directions run, then rows that do not see them are as without.
      AttendCase clean({c.sizes}, 7);
      RunAttend(device(), {&c}, /*backward=*/true);
      RunAttend(device(), {&clean}, /*backward=*/true);
      for (int64_t i = 0; i < 130; ++i) {
        for (int64_t d = 0; d < 40; ++d) {
          const bool odd = (d == 39 && i >= 80) || i == 129;
          // An odd value is added apart from the others of its tile: another order of rounding.
          const float slack = i < 80 ? 0 : dtype == DType::kF32 ? 1e-6f : 0.02f;
          if (odd) continue;
          EXPECT_NEAR(c.out.Get(0, 0, i, d), clean.out.Get(0, 0, i, d), slack) << i << " " << d;
          if (i == 3) continue;
          EXPECT_NEAR(c.out.Get(0, 1, i, d), clean.out.Get(0, 1, i, d), slack) << i << " " << d;
        }
      }
      EXPECT_FALSE(std::isfinite(c.out.Get(0, 0, 80, 39)));
      EXPECT_FALSE(std::isfinite(c.out.Get(0, 0, 129, 7)));
      // Query 3 sees keys up to 73, query 5 up to 75; everything beyond key 75 sees neither. Rows
      // of queries from 80 on have a non-finite delta, and they see every key.
      for (int64_t i = 6; i < 80; ++i) {
        for (int64_t d = 0; d < 24; ++d) {
          EXPECT_TRUE(std::isfinite(c.dq.Get(0, 0, i, d))) << i << " " << d;
        }
      }
    }
  }
}

TEST_P(Attend, KeysHiddenFromOddQueriesKeepTheirGradients) {
  // Given: query 5 is NaN everywhere, and sees keys up to 75 only.
  AttendCase c({.Nq = 130, .Nk = 200, .D = 24, .Dv = 40, .mask = MaskKind::kCausal}, 9);
  AttendCase clean(c.sizes, 9);
  for (int64_t d = 0; d < 24; ++d) c.q.Set(0, 0, 5, d, kNaN);
  for (int64_t d = 0; d < 40; ++d) c.dout.Set(0, 0, 5, d, kInf);
  // When
  RunAttend(device(), {&c}, /*backward=*/true);
  RunAttend(device(), {&clean}, /*backward=*/true);
  // Then: keys from 76 on have the gradients of the clean case up to rounding, the others NaN.
  for (int64_t j = 0; j < 200; ++j) {
    for (int64_t d = 0; d < 24; ++d) {
      if (j <= 75) {
        EXPECT_TRUE(std::isnan(c.dk.Get(0, 0, j, d)));
      } else {
        EXPECT_NEAR(c.dk.Get(0, 0, j, d), clean.dk.Get(0, 0, j, d), 1e-6);
      }
    }
    for (int64_t d = 0; d < 40 && j > 75; ++d) {
      EXPECT_NEAR(c.dv.Get(0, 0, j, d), clean.dv.Get(0, 0, j, d), 1e-6);
    }
  }
}

TEST_P(Attend, RowsThatSeeNothingGiveZeroAndMinusInfinity) {
  // Given: more queries than keys, causal, so that the first 60 rows see nothing.
  const AttendCase c({.Nq = 100, .Nk = 40, .D = 8, .Dv = 8, .mask = MaskKind::kCausal}, 3);
  RunAttend(device(), {&c}, /*backward=*/true);
  for (int64_t i = 0; i < 60; ++i) {
    EXPECT_EQ(c.lse.Get(0, 0, i), -kInf);
    for (int64_t d = 0; d < 8; ++d) {
      EXPECT_EQ(c.out.Get(0, 0, i, d), 0.0f);
      EXPECT_EQ(c.dq.Get(0, 0, i, d), 0.0f);
    }
  }
}

std::vector<std::unique_ptr<AttendCase>> RaggedCases() {
  std::vector<std::unique_ptr<AttendCase>> cases;
  for (uint64_t n = 0; n < 64; ++n) {
    const int64_t Nq = static_cast<int64_t>(n * 37 % 190), Nk = static_cast<int64_t>(n * 53 % 700);
    cases.push_back(std::make_unique<AttendCase>(
        AttendSizes{.H = 2, .Nq = Nq, .Nk = Nk, .D = 16, .Dv = 24, .mask = MaskKind(n % 4)}, n));
    // Some hold values that a weight of 0 does not hide.
    if (n % 5 == 0 && Nk > 10) cases.back()->v.Set(0, 0, Nk - 10, 3, n % 2 == 0 ? kNaN : kInf);
  }
  return cases;
}

TEST_P(Attend, AProblemDoesNotDependOnItsListOrOnThreadsBitForBit) {
  const auto list = RaggedCases(), alone = RaggedCases();
  std::vector<const AttendCase*> all;
  for (const auto& c : list) all.push_back(c.get());
  RunAttend(device(2), all, /*backward=*/true);
  for (size_t n = 0; n < list.size(); ++n) {
    RunAttend(device(1), {alone[n].get()}, /*backward=*/true);
    EXPECT_EQ(list[n]->Outputs(true), alone[n]->Outputs(true)) << list[n]->sizes.ToString();
  }
}

TEST_P(Attend, AListIsOneLaunch) {
  const auto cases = RaggedCases();
  std::vector<const AttendCase*> all;
  for (const auto& c : cases) all.push_back(c.get());
  const int64_t before = device().launches();
  RunAttend(device(), all, /*backward=*/false);
  EXPECT_EQ(device().launches(), before + 1);
  RunAttend(device(), all, /*backward=*/true);
  EXPECT_EQ(device().launches(), before + 3);
}

TEST_P(Attend, GradientsThatAreNotWantedAreNotWritten) {
  for (int wanted = 0; wanted < 8; ++wanted) {
    const AttendSizes sizes = {.H = 2, .Nq = 70, .Nk = 300, .D = 16, .Dv = 16};
    const AttendCase c(sizes, 5), all(sizes, 5), untouched(sizes, 5);
    RunAttend(device(), {&all}, /*backward=*/true);
    RunAttend(device(), {&c}, /*backward=*/false);
    BufferPool pool(0, /*poison=*/true);
    Stream stream(device(), &pool);
    AttendGradProblem p = c.Backward();
    if ((wanted & 1) == 0) p.dq = View();
    if ((wanted & 2) == 0) p.dk = View();
    if ((wanted & 4) == 0) p.dv = View();
    ASSERT_TRUE(
        device().Run(stream, AttendGradArgs{.params = {.scale = c.scale}, .problems = {p}}).ok());
    EXPECT_EQ(c.dq.Payload(), ((wanted & 1) != 0 ? all : untouched).dq.Payload());
    EXPECT_EQ(c.dk.Payload(), ((wanted & 2) != 0 ? all : untouched).dk.Payload());
    EXPECT_EQ(c.dv.Payload(), ((wanted & 4) != 0 ? all : untouched).dv.Payload());
  }
}

TEST_P(Attend, AbsentIncomingGradientsCountAsZero) {
  const AttendSizes sizes = {.Nq = 70, .Nk = 100, .D = 16, .Dv = 16, .mask = MaskKind::kBits};
  for (bool has_dout : {false, true}) {
    AttendCase zero(sizes, 5), absent(sizes, 5);
    for (int64_t i = 0; i < 70; ++i) {
      if (has_dout) zero.dlse.Set(0, 0, i, 0, 0);
      for (int64_t d = 0; d < 16 && !has_dout; ++d) zero.dout.Set(0, 0, i, d, 0);
    }
    RunAttend(device(), {&zero}, /*backward=*/true);
    RunAttend(device(), {&absent}, /*backward=*/false);
    BufferPool pool(0, /*poison=*/true);
    Stream stream(device(), &pool);
    AttendGradProblem p = absent.Backward();
    (has_dout ? p.dlse : p.dout) = View();
    ASSERT_TRUE(device()
                    .Run(stream, AttendGradArgs{.params = {.scale = zero.scale}, .problems = {p}})
                    .ok());
    EXPECT_EQ(zero.dq.Payload(), absent.dq.Payload());
    EXPECT_EQ(zero.dk.Payload(), absent.dk.Payload());
    EXPECT_EQ(zero.dv.Payload(), absent.dv.Payload());
    zero.ExpectBackward();
  }
}

TEST_P(Attend, ADryRunTakesTheSameMemoryAndPredictsSeconds) {
  const AttendCase c({.H = 4, .Hkv = 2, .Nq = 300, .Nk = 700, .D = 32, .Dv = 16}, 5);
  AttendProblem p = c.Forward();
  AttendGradProblem g = c.Backward();
  BufferPool pool;
  Stream real(device(), &pool), dry(device(), nullptr);
  for (Stream* stream : {&real, &dry}) {
    if (stream == &dry) {
      for (View* view : {&p.q, &p.k, &p.v, &p.out, &p.lse, &g.dout, &g.dlse, &g.dq, &g.dk, &g.dv}) {
        view->data = nullptr;
      }
      g.forward = p;
    }
    ASSERT_TRUE(
        device().Run(*stream, AttendArgs{.params = {.scale = c.scale}, .problems = {p}}).ok());
    ASSERT_TRUE(
        device().Run(*stream, AttendGradArgs{.params = {.scale = c.scale}, .problems = {g}}).ok());
  }
  EXPECT_EQ(real.workspace().peak_bytes(), dry.workspace().peak_bytes());
  EXPECT_EQ(real.work().seconds, 0);
  EXPECT_GT(dry.work().seconds, 0);
}

}  // namespace
}  // namespace attnd
