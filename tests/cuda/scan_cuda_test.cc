// scan on a CUDA device: lines of several segments, thread orders, lists.
#include <gtest/gtest.h>

#include "tests/cpu/scan_case.h"
#include "tests/cuda/thread_orders.h"

namespace attnd::testing {
namespace {

using Decays = ScanSpec::Decays;

// Lines of three segments, of one and of none.
ScanSpec Segments(ScanSpec spec) {
  spec.B = 3;
  spec.Nq = 600;
  spec.Nk = 620;
  spec.H = 4;
  spec.Hkv = 2;
  spec.D = 9;
  spec.Dv = 7;
  spec.seqs = {{.nq = 600, .nk = 620, .offset = 20},
               {.nq = 100, .nk = 120, .offset = 20},
               {.nq = 0, .nk = 0, .offset = 0}};
  return spec;
}

std::vector<ScanSpec> AllOfSegments() {
  std::vector<ScanSpec> specs;
  for (const bool delta : {false, true}) {
    for (const Decays decays : {Decays::kNone, Decays::kKey, Decays::kFeature}) {
      for (const bool all : {false, true}) {
        ScanSpec spec = Segments({.params = {.causal = true, .eps = 1e-3},
                                  .decays = decays,
                                  .beta = all,
                                  .state = all,
                                  .final = all});
        specs.push_back(delta ? Delta(spec) : spec);
      }
    }
  }
  for (const bool causal : {false, true}) {
    for (const ScanDen den : {ScanDen::kOne, ScanDen::kClamp}) {
      for (const FeatureMap map : {FeatureMap::kExp, FeatureMap::kEluPlusOne}) {
        specs.push_back(Segments(
            {.params = {.map = map, .causal = causal, .den = den, .eps = 1e-3, .scale = 1e-3}}));
      }
    }
  }
  return specs;
}

std::string Describe(const ScanSpec& s) {
  return absl::StrCat("delta ", s.params.rule == ScanRule::kDelta, " decays ",
                      static_cast<int>(s.decays), " state ", s.state, " causal ", s.params.causal,
                      " den ", static_cast<int>(s.params.den), " map ",
                      static_cast<int>(s.params.map));
}

TEST(ScanCuda, LinesOfSeveralSegments) {
  for (const ScanSpec& spec : AllOfSegments()) {
    SCOPED_TRACE(Describe(spec));
    ExpectMatchesPlain(spec, {.out = 2e-5, .grad = 1e-4});
  }
}

// Lengths around chunks of 64 positions and segments of 256, heads around 64 and 128 features.
TEST(ScanCuda, BordersOfChunksSegmentsAndHeads) {
  struct Size {
    int64_t N, offset, D, Dv;
  };
  const Size sizes[] = {{1, 0, 64, 64},    {63, 0, 4, 8},     {64, 0, 64, 4},  {65, -3, 16, 12},
                        {255, 5, 12, 16},  {256, 0, 16, 64},  {257, 64, 8, 8}, {321, -70, 8, 20},
                        {130, 0, 65, 100}, {70, 1, 128, 128}, {70, 0, 64, 65}, {66, 0, 129, 8},
                        {66, 0, 8, 129}};
  for (const Size& size : sizes) {
    for (const Decays decays : {Decays::kNone, Decays::kKey}) {
      ScanSpec spec = {.B = 1,
                       .H = 2,
                       .Hkv = 1,
                       .Nq = size.N,
                       .Nk = size.N,
                       .D = size.D,
                       .Dv = size.Dv,
                       .params = {.causal = true, .eps = 1e-3},
                       .seqs = {{.nq = size.N, .nk = size.N, .offset = size.offset}},
                       .decays = decays,
                       .state = true,
                       .final = true};
      ExpectMatchesPlain(spec, {.out = 2e-5, .grad = 1e-4});
      if (decays == Decays::kKey) continue;
      // Nothing of a decay: gradients of chunks, too, and rows that are copied whole.
      spec.beta = false;
      spec.state = spec.final = false;
      ExpectMatchesPlain(spec, {.out = 2e-5, .grad = 1e-4});
    }
  }
}

// A value, a key, a query and a gradient that are not finite at the ends of chunks and in another
// segment reach what sees them, and nothing else.
TEST(ScanCuda, BadValuesStayWhereTheyAreSeen) {
  constexpr int64_t kN = 300, kD = 8;
  for (const int64_t at : {0, 63, 64, 255, 256}) {
    for (int where = 0; where < 4; ++where) {
      ScanCase c({.H = 2,
                  .Hkv = 1,
                  .Nq = kN,
                  .Nk = kN,
                  .D = kD,
                  .Dv = kD,
                  .params = {.causal = true},
                  .deviation = 0.2});
      GuardedTensor* const tensors[] = {&c.q, &c.k, &c.v, &c.dout};
      tensors[where]->Set(0, 0, at, 3, std::numeric_limits<double>::infinity());
      c.Run(&CpuOf("cuda"));
      const bool is_key = where == 1 || where == 2;
      const auto finite = [](const GuardedTensor& t, int64_t h, int64_t n) {
        for (int64_t d = 0; d < kD; ++d) {
          if (!std::isfinite(t.Get(0, h, n, d))) return false;
        }
        return true;
      };
      for (int64_t n = 0; n < kN; ++n) {
        const bool sees = is_key ? n >= at : n == at;
        const bool is_out_bad = sees && where != 3;
        EXPECT_EQ(finite(c.out, 0, n), !is_out_bad) << where << " at " << at << ": " << n;
        EXPECT_TRUE(sees || finite(c.dq, 0, n)) << where << " at " << at << ": dq " << n;
        if (is_key) continue;
        EXPECT_TRUE(finite(c.out, 1, n) && finite(c.dq, 1, n));
        EXPECT_TRUE(n <= at || (finite(c.dk, 0, n) && finite(c.dv, 0, n)))
            << where << " at " << at << ": " << n;
      }
    }
  }
}

// Shifts and lifts that rise and fall over segments, far more than float32 can span.
// Bit for bit: rows whose out has no gradient have one of lse.
TEST(ScanCuda, AnAbsentGradientOfOutIsZero) {
  constexpr int64_t kN = 70, kD = 16;
  ScanCase c({.B = 1,
              .H = 2,
              .Hkv = 1,
              .Nq = kN,
              .Nk = kN,
              .D = kD,
              .Dv = kD,
              .params = {.map = FeatureMap::kEluPlusOne, .causal = true, .den = ScanDen::kAdd}});
  std::vector<double> results[2];
  for (const bool is_absent : {false, true}) {
    ScanGradProblem grad = c.GradProblem();
    if (is_absent) grad.dout = View();
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t n = 0; n < kN; ++n) {
        for (int64_t d = 0; d < kD; ++d) c.dout.Set(0, h, n, d, 0);
      }
    }
    const ScanGradArgs args{.params = c.spec.params, .problems = {grad}};
    RunOn(CpuOf("cuda", 1), [&](Stream& stream) { return stream.device().Run(stream, args); });
    for (int64_t n = 0; n < kN; ++n) {
      for (int64_t d = 0; d < kD; ++d) {
        for (int64_t h = 0; h < 2; ++h) results[is_absent].push_back(c.dq.Get(0, h, n, d));
        results[is_absent].push_back(c.dk.Get(0, 0, n, d));
      }
    }
  }
  EXPECT_NE(results[0], std::vector<double>(results[0].size()));
  EXPECT_TRUE(results[0] == results[1]);
}

TEST(ScanCuda, ShiftsOfSeveralSegments) {
  for (const ScanDen den : {ScanDen::kOne, ScanDen::kAdd}) {
    ScanSpec spec = Segments({.params = {.map = FeatureMap::kExp, .causal = true, .den = den}});
    spec.B = 1;
    spec.seqs.resize(1);
    const auto rise = [](ScanCase* c) {
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t n = 0; n < 620; ++n) {
          const double height = 0.2 * static_cast<double>(std::min<int64_t>(n, 620 - n));
          for (int64_t d = 0; d < 9; ++d) c->k.Set(0, h, n, d, c->k.Get(0, h, n, d) + height);
        }
      }
      for (int64_t h = 0; h < 4; ++h) {
        for (int64_t n = 0; n < 600; ++n) {
          const double height = 0.1 * static_cast<double>(n);
          for (int64_t d = 0; d < 9; ++d) c->q.Set(0, h, n, d, c->q.Get(0, h, n, d) - height);
        }
      }
    };
    ExpectMatchesPlain(spec, "cuda", {.out = 1e-4, .grad = 1e-4}, rise);
  }
}

TEST(ScanCuda, EveryOrderOfThreadsGivesTheSameBits) {
  for (ScanSpec spec : AllOfSegments()) {
    SCOPED_TRACE(Describe(spec));
    spec.Nq = spec.Nk = 300;
    spec.seqs = {{.nq = 270, .nk = 300, .offset = 20},
                 {.nq = 30, .nk = 40, .offset = -5},
                 {.nq = 0, .nk = 0, .offset = 0}};
    std::vector<std::unique_ptr<ScanCase>> cases;
    ForEachThreadOrder([&](const std::string&) {
      cases.push_back(std::make_unique<ScanCase>(spec));
      cases.back()->Run(&CpuOf("cuda"));
    });
    for (size_t i = 1; i < cases.size(); ++i) {
      for (size_t j = 0; j < cases[0]->Outputs().size(); ++j) {
        EXPECT_EQ(cases[0]->Outputs()[j]->bytes(), cases[i]->Outputs()[j]->bytes()) << i << j;
      }
    }
  }
}

// Problems of different widths and groups, some of them in segments: shapes of their own.
void ExpectListIsAsAlone(const ScanSpec& like) {
  std::vector<std::unique_ptr<ScanCase>> alone, listed;
  const int64_t sizes[][4] = {{20, 9, 7, 2},  {300, 40, 70, 2}, {1, 9, 300, 4}, {270, 9, 7, 2},
                              {40, 70, 9, 6}, {0, 5, 5, 2},     {33, 600, 3, 2}};
  for (const auto& size : sizes) {
    ScanSpec spec = like;
    spec.B = 2;
    spec.Nq = spec.Nk = size[0];
    spec.D = size[1];
    spec.Dv = size[2];
    spec.H = size[3];
    spec.Hkv = 2;
    spec.seqs = {};
    if (spec.params.rule == ScanRule::kDelta) spec = Delta(spec);
    alone.push_back(std::make_unique<ScanCase>(spec));
    listed.push_back(std::make_unique<ScanCase>(spec));
  }
  Device& device = CpuOf("cuda");
  std::vector<ScanProblem> problems;
  std::vector<ScanGradProblem> grads;
  for (const auto& c : alone) c->Run(&device);
  for (const auto& c : listed) {
    problems.push_back(c->Problem());
    grads.push_back(c->GradProblem());
  }
  BufferPool pool(0, /*poison=*/true);
  Stream dry(device, nullptr), wet(device, &pool);
  for (Stream* stream : {&dry, &wet}) {
    ASSERT_TRUE(device.Run(*stream, ScanArgs{.params = like.params, .problems = problems}).ok());
    ASSERT_TRUE(device.Run(*stream, ScanGradArgs{.params = like.params, .problems = grads}).ok());
  }
  EXPECT_EQ(dry.workspace().peak_bytes(), wet.workspace().peak_bytes());
  EXPECT_GT(dry.work().seconds, 0);
  for (size_t i = 0; i < alone.size(); ++i) {
    for (size_t j = 0; j < alone[i]->Outputs().size(); ++j) {
      EXPECT_EQ(alone[i]->Outputs()[j]->bytes(), listed[i]->Outputs()[j]->bytes()) << i << j;
    }
  }
}

TEST(ScanCuda, AProblemOfAListGivesTheBitsThatItGivesAlone) {
  ScanSpec sum = {.params = {.causal = true}, .decays = Decays::kFeature};
  sum.beta = sum.state = sum.final = true;
  ExpectListIsAsAlone(sum);
  sum.decays = Decays::kKey;
  ExpectListIsAsAlone(Delta(sum));
  ExpectListIsAsAlone({.params = {.map = FeatureMap::kExp, .causal = true}});
}

// Sequences that a dry stream counts as one take the memory of all.
TEST(ScanCuda, EqualSequencesOfADryRunCountAsMany) {
  ScanSpec spec = {.B = 5, .H = 4, .Hkv = 2, .Nq = 600, .Nk = 600, .params = {.causal = true}};
  const ScanCase c(spec);
  ScanGradProblem grad = c.GradProblem();
  Device& device = CpuOf("cuda");
  Stream all(device, nullptr), one(device, nullptr);
  ASSERT_TRUE(device.Run(all, ScanGradArgs{.params = spec.params, .problems = {grad}}).ok());
  grad.forward.seqs.resize(1);
  grad.forward.seqs[0].count = 5;
  ASSERT_TRUE(device.Run(one, ScanGradArgs{.params = spec.params, .problems = {grad}}).ok());
  EXPECT_EQ(all.workspace().peak_bytes(), one.workspace().peak_bytes());
  EXPECT_EQ(all.work().seconds, one.work().seconds);
}

// States too wide for the registers of a warp are left to others, before anything is allocated.
TEST(ScanCuda, DeclinesWideStates) {
  const ScanSpec spec = {.Nq = 1, .Nk = 1, .D = 2049, .Dv = 1};
  const ScanCase c(spec);
  Device& device = CpuOf("cuda");
  BufferPool pool(0, /*poison=*/true);
  Stream dry(device, nullptr), wet(device, &pool);
  for (Stream* stream : {&dry, &wet}) {
    const DeviceStatus status =
        device.Run(*stream, ScanArgs{.params = spec.params, .problems = {c.Problem()}});
    EXPECT_EQ(status.code(), DeviceStatus::Code::kDeclined);
    EXPECT_EQ(stream->workspace().peak_bytes(), 0);
  }
}

}  // namespace
}  // namespace attnd::testing
