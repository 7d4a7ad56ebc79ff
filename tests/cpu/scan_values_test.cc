// What scan makes of particular values: golden sums, features near 0, shifts, NaN and Inf.
#include <gtest/gtest.h>

#include "tests/cpu/scan_case.h"

namespace attnd::testing {
namespace {

TEST(Scan, GoldenValuesOfTheSpecification) {
  for (const std::string& isa : AvailableIsas()) {
    for (bool causal : {false, true}) {
      ScanCase c(
          {.H = 2, .Hkv = 2, .Nq = 12, .Nk = 12, .D = 4, .Dv = 4, .params = {.causal = causal}});
      for (int64_t e = 0; e < 96; ++e) {
        const int64_t h = e / 48, n = e / 4 % 12, d = e % 4;
        c.q.Set(0, h, n, d, std::sin(0.7 * e));
        c.k.Set(0, h, n, d, std::sin(0.7 * e + 1));
        c.v.Set(0, h, n, d, std::sin(0.7 * e + 2));
      }
      c.Run(&CpuOf(isa));
      double sum = 0;
      for (double x : c.out.Plain().data) sum += std::fabs(x);
      EXPECT_NEAR(c.out.Get(0, 0, 0, 0), causal ? 0.909297339 : 0.393036363, 1e-6);
      EXPECT_NEAR(c.out.Get(0, 1, 11, 1), 0.111551917, 1e-6);
      EXPECT_NEAR(c.out.Get(0, 1, 5, 0), causal ? 0.008041269 : 0.206902248, 1e-6);
      EXPECT_NEAR(sum, causal ? 23.749812382 : 18.662885733, 2e-5);
      EXPECT_NEAR(c.lse.Get(0, 1, 5, 0), causal ? 2.500842817 : 3.242207020, 1e-6);
    }
  }
}

// elu + 1, gelu and sigmoid cancel when computed as written.
TEST(Scan, FeaturesAreAccurateRelativeToThemselves) {
  constexpr int64_t kN = 801;
  for (const std::string& isa : AvailableIsas()) {
    for (FeatureMap map : kMaps) {
      ScanCase c({.H = 1,
                  .Nq = kN,
                  .Nk = 1,
                  .D = 1,
                  .Dv = 1,
                  .params = {.map = map, .den = ScanDen::kOne}});
      // The shifts of exp are rounded as sums of up to 40.
      const double tolerance = map == FeatureMap::kExp ? 5e-6 : 1.5e-6;
      const double reach = map == FeatureMap::kGelu ? 12 : map == FeatureMap::kExp ? 40 : 80;
      for (int64_t i = 0; i < kN; ++i) c.q.Set(0, 0, i, 0, reach * (i - 400) / 400.0);
      c.k.Set(0, 0, 0, 0, 1);
      c.v.Set(0, 0, 0, 0, 1);
      c.Run(&CpuOf(isa));
      for (int64_t i = 0; i < kN; ++i) {
        const double x = c.q.Get(0, 0, i, 0);
        const double want = PlainFeature(map, x) * PlainFeature(map, 1);
        EXPECT_NEAR(c.out.Get(0, 0, i, 0), want, tolerance * std::fabs(want))
            << isa << " map " << static_cast<int>(map) << " at " << x;
      }
    }
  }
}

// Keys rise by 262 over the sequence and fall again: far more than float32 can span.
TEST(Scan, ExpDoesNotOverflow) {
  const auto mountain = [](ScanCase* c) {
    for (int64_t n = 0; n < 131; ++n) {
      for (int64_t d = 0; d < 16; ++d) {
        const double height = 4.0 * std::min<int64_t>(n, 131 - n);
        c->k.Set(0, 0, n, d, c->k.Get(0, 0, n, d) + height);
      }
    }
  };
  for (const std::string& isa : AvailableIsas()) {
    for (bool causal : {false, true}) {
      ExpectMatchesPlain({.Nq = 131,
                          .Nk = 131,
                          .D = 16,
                          .Dv = 8,
                          .params = {.map = FeatureMap::kExp, .causal = causal},
                          .mean = 90,
                          .deviation = 3},
                         isa, {.out = 1e-4, .grad = 1e-4}, mountain);
    }
  }
}

TEST(Scan, ExpWithVanishedNormaliserGivesZeroRow) {
  for (const std::string& isa : AvailableIsas()) {
    for (bool causal : {false, true}) {
      ScanCase c({.H = 1,
                  .Nq = 1,
                  .Nk = 1,
                  .D = 2,
                  .Dv = 1,
                  .params = {.map = FeatureMap::kExp, .causal = causal}});
      c.q.Set(0, 0, 0, 0, 200);
      c.q.Set(0, 0, 0, 1, 0);
      c.k.Set(0, 0, 0, 0, 0);
      c.k.Set(0, 0, 0, 1, 200);
      c.Run(&CpuOf(isa));
      EXPECT_EQ(c.out.Get(0, 0, 0, 0), 0);
      EXPECT_EQ(c.lse.Get(0, 0, 0, 0), -std::numeric_limits<double>::infinity());
      for (const GuardedTensor* grad : {&c.dq, &c.dk, &c.dv}) {
        for (double x : grad->Plain().data) EXPECT_EQ(x, 0);
      }
    }
  }
}

TEST(Scan, ZeroNormaliserGivesNanLseWithoutGradient) {
  for (const std::string& isa : AvailableIsas()) {
    for (FeatureMap map : kMaps) {
      if (std::fabs(PlainFeature(map, 0)) > 0) continue;
      for (bool normalize : {true, false}) {
        for (bool causal : {false, true}) {
          ScanSpec spec = {
              .Nq = 3,
              .Nk = 2,
              .D = 2,
              .Dv = 2,
              .params = {
                  .map = map, .causal = causal, .den = normalize ? ScanDen::kAdd : ScanDen::kOne}};
          const auto zero_queries = [](ScanCase* c) {
            for (int64_t n = 0; n < 3; ++n) {
              for (int64_t d = 0; d < 2; ++d) c->q.Set(0, 0, n, d, 0);
            }
          };
          ScanCase c(spec);
          zero_queries(&c);
          c.Run(&CpuOf(isa));
          // Offset -1: the first row sees no key.
          for (int64_t n = 0; n < 3; ++n) {
            const double lse = c.lse.Get(0, 0, n, 0);
            if (causal && n == 0) {
              EXPECT_EQ(lse, -std::numeric_limits<double>::infinity());
            } else {
              EXPECT_TRUE(std::isnan(lse)) << lse << " map " << static_cast<int>(map);
            }
          }
          for (const GuardedTensor* grad : {&c.dq, &c.dk, &c.dv}) {
            for (double x : grad->Plain().data) EXPECT_TRUE(std::isfinite(x));
          }
          ExpectMatchesPlain(spec, isa, {.out = 1e-4, .grad = 1e-4}, zero_queries);
        }
      }
    }
  }
}

// dlse is ignored where lse is NaN.
TEST(Scan, NegativeNormaliserIgnoresTheGradientOfLse) {
  for (const std::string& isa : AvailableIsas()) {
    for (bool normalize : {true, false}) {
      ScanCase c({.H = 1,
                  .Nq = 1,
                  .Nk = 1,
                  .D = 1,
                  .Dv = 1,
                  .params = {.map = FeatureMap::kIdentity,
                             .den = normalize ? ScanDen::kAdd : ScanDen::kOne}});
      c.q.Set(0, 0, 0, 0, -2);
      c.k.Set(0, 0, 0, 0, 1);
      c.v.Set(0, 0, 0, 0, 3);
      c.dout.Set(0, 0, 0, 0, 0);
      c.dlse.Set(0, 0, 0, 0, 1);
      c.Run(&CpuOf(isa));
      for (const GuardedTensor* grad : {&c.dq, &c.dk, &c.dv}) {
        EXPECT_EQ(grad->Get(0, 0, 0, 0), 0);
      }
    }
  }
}

TEST(Scan, NegativeNormaliserGivesNanLse) {
  for (const std::string& isa : AvailableIsas()) {
    ScanCase c(
        {.H = 1, .Nq = 1, .Nk = 1, .D = 1, .Dv = 1, .params = {.map = FeatureMap::kIdentity}});
    c.q.Set(0, 0, 0, 0, -2);
    c.k.Set(0, 0, 0, 0, 1);
    c.v.Set(0, 0, 0, 0, 3);
    c.Run(&CpuOf(isa));
    EXPECT_NEAR(c.out.Get(0, 0, 0, 0), 3, 1e-5);
    EXPECT_TRUE(std::isnan(c.lse.Get(0, 0, 0, 0)));
  }
}

// 0 * NaN: a block's product must not carry a bad key to queries that do not see it, nor a bad
// query to keys that it does not see.
TEST(Scan, BadValuesReachOnlyQueriesThatSeeThem) {
  constexpr int64_t kBad = 70, kN = 131;
  const double values[] = {std::nan(""), std::numeric_limits<double>::infinity()};
  const ScanParams rules[] = {{.map = FeatureMap::kEluPlusOne, .causal = true},
                              {.map = FeatureMap::kExp, .causal = true},
                              {.map = FeatureMap::kIdentity,
                               .rule = ScanRule::kDelta,
                               .causal = true,
                               .den = ScanDen::kOne}};
  for (const std::string& isa : AvailableIsas()) {
    for (const ScanParams& params : rules) {
      for (double value : values) {
        for (int where = 0; where < 4; ++where) {
          ScanCase c({.H = 4,
                      .Hkv = 2,
                      .Nq = kN,
                      .Nk = kN,
                      .D = 8,
                      .Dv = 8,
                      .params = params,
                      .deviation = 0.2});
          GuardedTensor* tensors[] = {&c.q, &c.k, &c.v, &c.dout};
          const bool is_key = where == 1 || where == 2;
          tensors[where]->Set(0, 1, kBad, 3, value);
          c.Run(&CpuOf(isa));
          const auto finite = [&](const GuardedTensor& t, int64_t h, int64_t n) {
            for (int64_t d = 0; d < 8; ++d) {
              if (!std::isfinite(t.Get(0, h, n, d))) return false;
            }
            return true;
          };
          for (int64_t h = 0; h < 4; ++h) {
            for (int64_t n = 0; n < kN; ++n) {
              const bool hit = is_key ? h / 2 == 1 && n >= kBad : h == 1 && n == kBad;
              if (!hit) {
                EXPECT_TRUE(finite(c.out, h, n)) << isa << where << " out " << h << "," << n;
                EXPECT_TRUE(finite(c.dq, h, n)) << isa << where << " dq " << h << "," << n;
              } else if (where != 3) {
                EXPECT_FALSE(finite(c.out, h, n)) << isa << where << " out " << h << "," << n;
              }
            }
          }
          for (int64_t h = 0; h < 2; ++h) {
            for (int64_t n = 0; n < kN; ++n) {
              const bool hit = is_key ? h == 1 : h == 0 && n <= kBad;
              if (hit) continue;
              EXPECT_TRUE(finite(c.dk, h, n)) << isa << where << " dk " << h << "," << n;
              EXPECT_TRUE(finite(c.dv, h, n)) << isa << where << " dv " << h << "," << n;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace attnd::testing
