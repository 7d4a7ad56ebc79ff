// Heads of scan cut in slices: threads and cuts change no bit.
#include <gtest/gtest.h>

#include "kernels/cpu/cpu_device.h"
#include "tests/cpu/scan_case.h"

namespace attnd::testing {
namespace {

using Decays = ScanSpec::Decays;

// One head with more work than a thread's share. Keys rise, so that the shift of the map exp does.
ScanSpec LongHead(int64_t group, const ScanParams& params) {
  return {.H = group, .Nq = 1500, .Nk = 1500, .D = 40, .Dv = 70, .params = params};
}
void Raise(ScanCase* c) {
  for (int64_t n = 0; n < c->spec.Nk; ++n) {
    for (int64_t d = 0; d < c->spec.D; ++d) {
      c->k.Set(0, 0, n, d, c->k.Get(0, 0, n, d) + 0.01 * static_cast<double>(n));
    }
  }
}

// Heads are cut where that is predicted to pay: it need not where threads compute fast for the rate
// at which they load, so that every machine predicts by the same speed.
Device& CpuOfOneSpeed(const std::string& isa, int threads) {
  Device& device = CpuOf(isa, threads);
  const_cast<Cpu&>(static_cast<CpuDevice&>(device).cpu()).thread_flops = 1e11;
  return device;
}

// Expects the same bits of one, two and four threads. Phases of a backward that is cut are launches
// of their own: `launches` in all.
void ExpectSameBits(const ScanSpec& spec, int64_t launches) {
  for (const std::string& isa : AvailableIsas()) {
    if (isa == "cuda") continue;  // cuts heads by their lengths alone: scan_cuda_test.cc
    SCOPED_TRACE(absl::StrCat(isa, " heads ", spec.H, " causal ", spec.params.causal, " map ",
                              static_cast<int>(spec.params.map), " den ",
                              static_cast<int>(spec.params.den)));
    ScanCase one(spec), two(spec), four(spec);
    for (ScanCase* c : {&one, &two, &four}) {
      if (spec.params.map == FeatureMap::kExp) Raise(c);
    }
    one.Run(&CpuOfOneSpeed(isa, 1));
    two.Run(&CpuOfOneSpeed(isa, 2));
    const int64_t before = CpuOfOneSpeed(isa, 4).launches();
    four.Run(&CpuOfOneSpeed(isa, 4));
    EXPECT_EQ(CpuOfOneSpeed(isa, 4).launches() - before, launches);
    for (size_t i = 0; i < one.Outputs().size(); ++i) {
      EXPECT_EQ(one.Outputs()[i]->bytes(), two.Outputs()[i]->bytes()) << i;
      EXPECT_EQ(one.Outputs()[i]->bytes(), four.Outputs()[i]->bytes()) << i;
    }
  }
}

TEST(Scan, SameBitsHoweverItIsCut) {
  for (const bool delta : {false, true}) {
    for (const Decays decays : {Decays::kNone, Decays::kKey, Decays::kFeature}) {
      for (const int64_t group : {1, 2}) {
        ScanSpec spec = LongHead(group, {.causal = true});
        spec.decays = decays;
        spec.state = spec.final = true;
        ExpectSameBits(delta ? Delta(spec) : spec, 4);
      }
    }
  }
}

TEST(Scan, SameBitsHoweverItIsCutWhenQueriesReadAllKeys) {
  for (const int64_t group : {1, 2, 5}) {
    ScanSpec spec = LongHead(group, {});
    spec.state = true;
    ExpectSameBits(spec, 4);
  }
}

// Each gradient of a normaliser is a sum over all features.
TEST(Scan, SameBitsHoweverNormalisersAreCut) {
  for (const ScanDen den : {ScanDen::kAdd, ScanDen::kClamp}) {
    for (const bool causal : {false, true}) {
      ScanSpec spec = LongHead(2, {.causal = causal, .den = den, .eps = 0.01});
      spec.beta = causal;
      spec.D = 75;
      ExpectSameBits(spec, 4);
    }
  }
}

TEST(Scan, SameBitsHoweverShiftsAreCut) {
  for (const int64_t offset : {0, 700, 1500}) {  // the last one is not causal
    for (const ScanDen den : {ScanDen::kAdd, ScanDen::kOne}) {
      ScanSpec spec = LongHead(
          2, {.map = FeatureMap::kExp, .causal = offset < 1500, .den = den, .scale = 1e-9});
      spec.seqs = {{.nq = 1500, .nk = 1500, .offset = offset}};
      ExpectSameBits(spec, den == ScanDen::kOne ? 3 : 4);
    }
  }
}

// What a head that is not cut leaves out changes nothing of the rest.
TEST(Scan, GradientsThatAreNotWantedAreNotWritten) {
  Device* device = &CpuOf(AvailableIsas()[0]);
  for (const bool causal : {false, true}) {
    for (int wanted = 1; wanted < 7; ++wanted) {
      const ScanSpec spec = {.Nq = 80, .Nk = 80, .params = {.causal = causal}};
      const ScanCase all(spec), some(spec), none(spec);
      BufferPool pool(int64_t{1} << 28, /*poison=*/true);
      Stream stream(*device, &pool);
      for (const ScanCase* c : {&all, &some}) {
        ScanGradProblem grad = c->GradProblem();
        if (c == &some) {
          if ((wanted & 1) == 0) grad.dq = {};
          if ((wanted & 2) == 0) grad.dk = {};
          if ((wanted & 4) == 0) grad.dv = {};
        }
        ASSERT_TRUE(
            device->Run(stream, ScanArgs{.params = spec.params, .problems = {grad.forward}}).ok());
        ASSERT_TRUE(
            device->Run(stream, ScanGradArgs{.params = spec.params, .problems = {grad}}).ok());
      }
      EXPECT_EQ(some.dq.bytes(), ((wanted & 1) != 0 ? all : none).dq.bytes()) << wanted;
      EXPECT_EQ(some.dk.bytes(), ((wanted & 2) != 0 ? all : none).dk.bytes()) << wanted;
      EXPECT_EQ(some.dv.bytes(), ((wanted & 4) != 0 ? all : none).dv.bytes()) << wanted;
    }
  }
}

TEST(Scan, DryStreamCountsWhatASlicedRunTakes) {
  Device* device = &CpuOf(AvailableIsas()[0], 2);
  const ScanSpec spec = Delta({.Nq = 1500,
                               .Nk = 1500,
                               .params = {.causal = true},
                               .decays = Decays::kFeature,
                               .beta = true,
                               .state = true});
  const ScanCase c(spec);
  const ScanGradProblem grad = c.GradProblem();
  BufferPool pool;
  Stream dry(*device, nullptr), wet(*device, &pool);
  for (Stream* stream : {&dry, &wet}) {
    ASSERT_TRUE(
        device->Run(*stream, ScanArgs{.params = spec.params, .problems = {grad.forward}}).ok());
    ASSERT_TRUE(device->Run(*stream, ScanGradArgs{.params = spec.params, .problems = {grad}}).ok());
  }
  EXPECT_EQ(dry.workspace().peak_bytes(), wet.workspace().peak_bytes());
}

}  // namespace
}  // namespace attnd::testing
