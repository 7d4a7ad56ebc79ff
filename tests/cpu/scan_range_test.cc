// The map exp without normalisation where its factors leave the range of float32.
#include <gtest/gtest.h>

#include "tests/cpu/scan_case.h"

namespace attnd::testing {
namespace {

// One query, one key, one value of the map exp without normalisation, on every instruction set.
struct ExpCall {
  double q, k, v, scale, dout, dlse;
};
template <class Check>
void RunExp(const ExpCall& call, const Check& check) {
  for (const std::string& isa : AvailableIsas()) {
    for (bool causal : {false, true}) {
      SCOPED_TRACE(isa);
      ScanCase c({.H = 1,
                  .Nq = 1,
                  .Nk = 1,
                  .D = 1,
                  .Dv = 1,
                  .params = {.map = FeatureMap::kExp,
                             .causal = causal,
                             .den = ScanDen::kOne,
                             .scale = call.scale}});
      c.q.Set(0, 0, 0, 0, call.q);
      c.k.Set(0, 0, 0, 0, call.k);
      c.v.Set(0, 0, 0, 0, call.v);
      c.dout.Set(0, 0, 0, 0, call.dout);
      c.dlse.Set(0, 0, 0, 0, call.dlse);
      c.Run(&CpuOf(isa));
      check(c);
    }
  }
}
constexpr double kInf = std::numeric_limits<double>::infinity();
double Only(const GuardedTensor& t) { return t.Get(0, 0, 0, 0); }

// e^(q + k) is beyond float32, its product with the values need not be.
TEST(Scan, ExpWithoutNormalisationMayPassThroughLargeFactors) {
  RunExp({.q = 100, .k = 100, .v = 0, .scale = 1, .dout = 1, .dlse = 0}, [](const ScanCase& c) {
    EXPECT_EQ(Only(c.out), 0);
    EXPECT_EQ(Only(c.lse), 200);
    EXPECT_EQ(Only(c.dq), 0);
    EXPECT_EQ(Only(c.dk), 0);
    EXPECT_EQ(Only(c.dv), kInf);
  });
  RunExp({.q = 100, .k = 100, .v = -1, .scale = 1, .dout = 0, .dlse = 3}, [](const ScanCase& c) {
    EXPECT_EQ(Only(c.out), -kInf);
    EXPECT_NEAR(Only(c.dq), 3, 1e-5);  // of lse alone
    EXPECT_NEAR(Only(c.dk), 3, 1e-5);
    EXPECT_EQ(Only(c.dv), 0);
  });
  RunExp({.q = 60, .k = 60, .v = 0, .scale = 1, .dout = 1, .dlse = 3}, [](const ScanCase& c) {
    EXPECT_NEAR(Only(c.dq), 3, 1e-5);
    EXPECT_NEAR(Only(c.dk), 3, 1e-5);
    EXPECT_EQ(Only(c.dv), kInf);
  });
  // A scale that makes up for it, in one range of float32 or only in that of double.
  struct Scaled {
    double q, k, scale;
  };
  for (const Scaled& s : {Scaled{80, 9, 1e-30}, Scaled{100, 100, 1e-80}, Scaled{-50, -60, 1e45}}) {
    const double want = s.scale * std::exp(s.q + s.k);
    RunExp({.q = s.q, .k = s.k, .v = 2, .scale = s.scale, .dout = 3, .dlse = 0},
           [&](const ScanCase& c) {
             EXPECT_NEAR(Only(c.out) / want, 2, 1e-5);
             EXPECT_NEAR(Only(c.dq) / want, 6, 1e-4);
             EXPECT_NEAR(Only(c.dk) / want, 6, 1e-4);
             EXPECT_NEAR(Only(c.dv) / want, 3, 1e-4);
           });
  }
  RunExp({.q = 80, .k = 9, .v = 1, .scale = 1e-30, .dout = 1, .dlse = 0},
         [](const ScanCase& c) { EXPECT_NEAR(Only(c.out), 4.489612819e8, 1e4); });
}

// Rows whose factors differ by e^200, in one chunk and in several: each keeps its own digits.
TEST(Scan, LargeFactorsOfSomeRowsLeaveTheOthersAlone) {
  const auto rise = [](ScanCase* c) {
    for (int64_t n = 0; n < 131; ++n) {
      const bool large = n % 40 == 17;
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t d = 0; d < 8; ++d) {
          c->q.Set(0, h, n, d, c->q.Get(0, h, n, d) + (large ? 140 : 0));
          // Small enough that no gradient overflows.
          if (large) c->dout.Set(0, h, n, d, 1e-30 * c->dout.Get(0, h, n, d));
        }
      }
    }
  };
  for (const std::string& isa : AvailableIsas()) {
    for (const int64_t chunk : {16, 64, 256}) {
      for (const bool causal : {false, true}) {
        ScanCase c({.Nq = 131,
                    .Nk = 131,
                    .D = 8,
                    .Dv = 8,
                    .params = {.map = FeatureMap::kExp,
                               .causal = causal,
                               .den = ScanDen::kOne,
                               .scale = 1e-6,
                               .chunk = chunk}});
        rise(&c);
        c.Run(&CpuOf(isa));
        const PlainScan plain = c.Plain();
        const PlainScanOut want = Forward(plain);
        const PlainScanGrads grads = Gradients(plain, {c.dout.Plain(), c.dlse.Plain()});
        // Row by row: the large ones would hide the others.
        const auto compare = [&](const GuardedTensor& got, const PlainTensor& wanted,
                                 const char* what) {
          for (int64_t h = 0; h < wanted.H; ++h) {
            for (int64_t n = 0; n < 131; ++n) {
              double largest = 0;
              for (int64_t d = 0; d < 8; ++d) {
                largest = std::max(largest, std::fabs(wanted.at(0, h, n, d)));
              }
              for (int64_t d = 0; d < 8; ++d) {
                const float want_float = static_cast<float>(wanted.at(0, h, n, d));
                if (std::isinf(want_float)) {
                  EXPECT_EQ(got.Get(0, h, n, d), want_float);
                  continue;
                }
                EXPECT_NEAR(got.Get(0, h, n, d), want_float, 1e-3 * largest)
                    << what << " row " << n << " chunk " << chunk << " " << isa;
              }
            }
          }
        };
        compare(c.out, want.out, "out");  // infinite in large rows
        compare(c.dq, grads.dq, "dq");
        compare(c.dk, grads.dk, "dk");
        compare(c.dv, grads.dv, "dv");
      }
    }
  }
}

}  // namespace
}  // namespace attnd::testing
