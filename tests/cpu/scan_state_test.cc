// scan with decays, write strengths, the delta rule, and states that come in and go out.
#include <gtest/gtest.h>

#include "tests/cpu/scan_case.h"

namespace attnd::testing {
namespace {

using Decays = ScanSpec::Decays;

// Gradients of decays pass through sums that cancel within 256 keys.
constexpr Tolerance kStateful = {.out = 2e-5, .grad = 1e-4};

std::vector<ScanSpec> Combinations() {
  std::vector<ScanSpec> specs;
  for (const bool delta : {false, true}) {
    for (const Decays decays : {Decays::kNone, Decays::kKey, Decays::kFeature}) {
      for (const bool beta : {false, true}) {
        for (const bool state : {false, true}) {
          for (const bool final : {false, true}) {
            ScanSpec spec = {.B = 2,
                             .H = 4,
                             .Hkv = 2,
                             .Nq = 70,
                             .Nk = 83,
                             .D = 9,
                             .Dv = 17,
                             .params = {.causal = true, .eps = 1e-3},
                             .decays = decays,
                             .beta = beta,
                             .state = state,
                             .final = final};
            specs.push_back(delta ? Delta(spec) : spec);
          }
        }
      }
    }
  }
  return specs;
}

std::string Describe(const ScanSpec& s) {
  return absl::StrCat("delta ", s.params.rule == ScanRule::kDelta, " decays ",
                      static_cast<int>(s.decays), " beta ", s.beta, " state ", s.state, " final ",
                      s.final);
}

// The analytic gradients that everything else is held against, by central differences in double.
TEST(PlainScan, GradientsOfStatefulScansAreDerivatives) {
  for (ScanSpec spec : Combinations()) {
    SCOPED_TRACE(Describe(spec));
    spec.Nq = 4;
    spec.Nk = 5;
    spec.D = 3;
    spec.Dv = 2;
    spec.deviation = 0.5;
    spec.seqs = {{.nq = 4, .nk = 5, .offset = 1}, {.nq = 4, .nk = 3, .offset = -1}};
    const ScanCase c(spec);
    PlainScan plain = c.Plain();
    const PlainIncoming in = c.Incoming();
    const PlainScanGrads grads = Gradients(plain, in);
    const auto objective = [&] {
      const PlainScanOut r = Forward(plain);
      double sum = 0;
      const auto add = [&](const PlainTensor& gradient, const PlainTensor& value) {
        for (size_t i = 0; i < gradient.data.size(); ++i) {
          if (std::isfinite(value.data[i]) && std::isfinite(gradient.data[i])) {
            sum += gradient.data[i] * value.data[i];
          }
        }
      };
      add(in.dout, r.out);
      add(in.dlse, r.lse);
      add(in.ds_out, r.s_out);
      add(in.dz_out, r.z_out);
      return sum;
    };
    const auto check = [&](PlainTensor* x, const PlainTensor& gradient, const char* what) {
      for (size_t i = 0; i < x->data.size(); ++i) {
        if (!std::isfinite(x->data[i])) continue;
        const double kept = x->data[i], step = 1e-6;
        x->data[i] = kept + step;
        const double above = objective();
        x->data[i] = kept - step;
        const double slope = (above - objective()) / (2 * step);
        x->data[i] = kept;
        EXPECT_NEAR(gradient.data[i], slope, 1e-6 * (1 + std::fabs(slope))) << what;
      }
    };
    check(&plain.q, grads.dq, "q");
    check(&plain.k, grads.dk, "k");
    check(&plain.v, grads.dv, "v");
    check(&plain.log_decay, grads.dlog_decay, "log_decay");
    check(&plain.beta, grads.dbeta, "beta");
    check(&plain.s0, grads.ds0, "s0");
    check(&plain.z0, grads.dz0, "z0");
  }
}

TEST(Scan, EveryCombination) {
  for (const ScanSpec& spec : Combinations()) {
    SCOPED_TRACE(Describe(spec));
    ExpectMatchesPlain(spec, kStateful);
  }
}

TEST(Scan, StatefulLengthsAndOffsets) {
  for (const int64_t offset : {-200, -70, -5, 0, 3, 64, 100}) {
    for (const bool delta : {false, true}) {
      for (const bool state : {false, true}) {
        ScanSpec spec = {.B = 3,
                         .Nq = 131,
                         .Nk = 140,
                         .D = 20,
                         .Dv = 16,
                         .params = {.causal = true},
                         .decays = Decays::kKey,
                         .beta = true,
                         .state = state,
                         .final = true};
        spec.seqs = {{.nq = 131, .nk = 140, .offset = offset},
                     {.nq = 65, .nk = 0, .offset = offset},
                     {.nq = 0, .nk = 63, .offset = offset}};
        ExpectMatchesPlain(delta ? Delta(spec) : spec, kStateful);
      }
    }
  }
}

TEST(Scan, StateWithoutCausality) {
  for (const int64_t Nk : {0, 1, 65}) {
    ExpectMatchesPlain({.B = 2, .H = 4, .Hkv = 2, .Nq = 40, .Nk = Nk, .state = true}, kStateful);
  }
}

TEST(Scan, StateOfOneKindOnly) {
  for (const std::string& isa : AvailableIsas()) {
    ScanCase c(
        {.Nq = 3, .Nk = 0, .D = 2, .Dv = 2, .params = {.den = ScanDen::kOne}, .state = true});
    ScanProblem problem = c.Problem();
    problem.z0 = {};
    BufferPool pool(0, /*poison=*/true);
    Stream stream(CpuOf(isa), &pool);
    ASSERT_TRUE(
        CpuOf(isa).Run(stream, ScanArgs{.params = c.spec.params, .problems = {problem}}).ok());
    PlainScan plain = c.Plain();
    plain.z0 = {};
    ExpectClose(c.out.Plain(), Forward(plain).out, 1e-5, "out");
    EXPECT_TRUE(std::isnan(c.lse.Get(0, 0, 0, 0)));  // a state, of which z is 0
  }
}

// No other number depends on whether lse is asked for.
TEST(Scan, WithoutLse) {
  for (const std::string& isa : AvailableIsas()) {
    for (const bool delta : {false, true}) {
      ScanSpec spec = {.Nq = 70, .Nk = 70, .D = 16, .Dv = 16, .params = {.causal = true}};
      if (delta) spec = Delta(spec);
      const ScanCase with(spec), without(spec);
      for (const ScanCase* c : {&with, &without}) {
        ScanProblem problem = c->Problem();
        if (c == &without) problem.lse = {};
        BufferPool pool(0, /*poison=*/true);
        Stream stream(CpuOf(isa), &pool);
        const ScanArgs args{.params = spec.params, .problems = {problem}};
        ASSERT_TRUE(CpuOf(isa).Run(stream, args).ok());
      }
      EXPECT_EQ(with.out.bytes(), without.out.bytes());
      EXPECT_TRUE(std::isnan(without.lse.Get(0, 0, 3, 0)));  // as before the run
    }
  }
}

TEST(Scan, ManyHeadsAndWidths) {
  for (const int64_t D : {1, 16, 33, 100}) {
    for (const int64_t Dv : {1, 16, 33, 100}) {
      ScanSpec spec = {.H = 6,
                       .Hkv = 2,
                       .Nq = 67,
                       .Nk = 67,
                       .D = D,
                       .Dv = Dv,
                       .params = {.causal = true},
                       .decays = Decays::kFeature,
                       .beta = true,
                       .state = true,
                       .final = true};
      ExpectMatchesPlain(spec, kStateful);
      ExpectMatchesPlain(Delta(spec), kStateful);
    }
  }
}

TEST(Scan, DeltaRuleOfManyHeadsAndLengths) {
  for (const int64_t group : {1, 3, 33}) {
    for (const int64_t N : {1, 15, 16, 17, 31, 33, 65}) {
      ExpectMatchesPlain(Delta({.H = 2 * group,
                                .Hkv = 2,
                                .Nq = N,
                                .Nk = N,
                                .D = 24,
                                .Dv = 40,
                                .beta = true,
                                .state = true,
                                .final = true}),
                         kStateful);
    }
  }
}

// Keys that are alike cancel most of what came before. Token by token each write mends the errors
// of those before it; a kernel that takes a long chunk of tokens as one product of keys with keys
// does not.
TEST(Scan, DeltaRuleOfKeysThatAreAlike) {
  constexpr int64_t kN = 48, kD = 32, kSeeds = 6;
  for (const std::string& isa : AvailableIsas()) {
    for (const bool alternates : {false, true}) {
      SCOPED_TRACE(absl::StrCat(isa, " alternates ", alternates));
      double ours = 0, plain = 0;
      for (unsigned seed = 1; seed <= kSeeds; ++seed) {
        ScanSpec spec = Delta({.H = 2, .Nq = kN, .Nk = kN, .D = kD, .Dv = 32});
        spec.seed = seed;
        ScanCase c(spec);
        // |k| = 1, all elements positive; or one key, a hundredth of noise, and its negative.
        for (int64_t n = 0; n < kN; ++n) {
          double norm2 = 0;
          std::vector<double> key(kD);
          for (int64_t d = 0; d < kD; ++d) {
            const double drawn = c.q.Get(0, 0, alternates ? 0 : n, d), noise = c.q.Get(0, 1, n, d);
            key[d] = alternates ? (n % 2 == 0 ? 1 : -1) * drawn + 0.01 * noise : std::fabs(drawn);
            norm2 += key[d] * key[d];
          }
          for (int64_t d = 0; d < kD; ++d) c.k.Set(0, 0, n, d, key[d] / std::sqrt(norm2));
        }
        c.Run(&CpuOf(isa));
        const PlainTensor out = c.out.Plain(), truth = Forward(c.Plain()).out;
        const PlainTensor loops = Forward<float>(c.Plain()).out;
        double our_worst = 0, plain_worst = 0;
        for (size_t i = 0; i < truth.data.size(); ++i) {
          our_worst = std::max(our_worst, std::fabs(out.data[i] - truth.data[i]));
          plain_worst = std::max(plain_worst, std::fabs(loops.data[i] - truth.data[i]));
        }
        ours += our_worst;
        plain += plain_worst;
      }
      EXPECT_LE(ours, 2 * plain);
    }
  }
}

TEST(Scan, TensorsThatRepeatOverHeads) {
  ExpectMatchesPlain({.B = 3,
                      .H = 4,
                      .Hkv = 2,
                      .Nq = 65,
                      .Nk = 65,
                      .D = 12,
                      .Dv = 20,
                      .params = {.causal = true},
                      .decays = Decays::kFeature,
                      .beta = true,
                      .state = true,
                      .final = true,
                      .repeated = true},
                     kStateful);
}

TEST(Scan, KeysAndValuesOfDifferentDtypes) {
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    ExpectMatchesPlain({.Nq = 70,
                        .Nk = 70,
                        .D = 20,
                        .Dv = 33,
                        .params = {.causal = true},
                        .dtype = dtype,
                        .state = true,
                        .v_dtype = DType::kBF16},
                       {8e-3, 1.6e-2});
  }
}

TEST(Scan, EveryDen) {
  for (const ScanDen den :
       {ScanDen::kOne, ScanDen::kAdd, ScanDen::kJax, ScanDen::kClamp, ScanDen::kAbsClamp}) {
    for (const double mean : {0.0, 1.0}) {
      for (const double scale : {1.0, -0.25}) {
        // The sums of identity features are of both signs, some of them below eps.
        ScanSpec spec = {.Nq = 65,
                         .Nk = 65,
                         .D = 8,
                         .Dv = 5,
                         .params = {.map = FeatureMap::kIdentity,
                                    .causal = true,
                                    .den = den,
                                    .eps = 6.0,
                                    .scale = scale},
                         .mean = mean};
        ExpectMatchesPlain(spec, {.out = 2e-5, .grad = 1e-4});
      }
    }
  }
}

// A decay of e^-inf forgets all that was, without a NaN; its own gradient is 0.
TEST(Scan, DecayToNothing) {
  for (const std::string& isa : AvailableIsas()) {
    for (const bool delta : {false, true}) {
      ScanSpec spec = {.Nq = 131,
                       .Nk = 131,
                       .D = 8,
                       .Dv = 8,
                       .params = {.causal = true},
                       .decays = Decays::kKey,
                       .state = true};
      ExpectMatchesPlain(delta ? Delta(spec) : spec, isa, kStateful, [](ScanCase* c) {
        for (const int64_t n : {0, 40, 41, 100}) {
          c->log_decay.Set(0, 0, n, 0, -std::numeric_limits<double>::infinity());
        }
        c->log_decay.Set(0, 0, 70, 0, -300);
      });
    }
  }
}

// Decays that one run of tokens can take, that end it at once, and that leave nothing.
TEST(Scan, DecaysOfAllSizes) {
  const std::vector<double> sizes = {-0.01, 0, -3, -12, -2, -40, -1e-4, -11, -0.5, -95, -7, -7, 0};
  for (const std::string& isa : AvailableIsas()) {
    for (const int64_t group : {1, 3}) {
      for (const int64_t N : {1, 2, 33, 131}) {
        ScanSpec spec = {.H = group,
                         .Nq = N,
                         .Nk = N,
                         .D = 24,
                         .Dv = 40,
                         .params = {.causal = true},
                         .decays = Decays::kKey,
                         .beta = true,
                         .state = true,
                         .final = true};
        const auto set = [&](ScanCase* c) {
          for (int64_t n = 0; n < N; ++n) {
            // Many in a row of one kind, and one of each after the other.
            const size_t at = static_cast<size_t>(n % 40 < 20 ? n / 5 : n);
            c->log_decay.Set(0, 0, n, 0, sizes[at % sizes.size()]);
          }
        };
        ExpectMatchesPlain(spec, isa, kStateful, set);
        ExpectMatchesPlain(Delta(spec), isa, kStateful, set);
      }
    }
  }
}

}  // namespace
}  // namespace attnd::testing
