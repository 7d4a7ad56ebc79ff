// Walks of whole lines on a CUDA device go on where the launch before them ended, and a run can end
// between two of them; what few blocks take is predicted as what one processor takes.
#include <gtest/gtest.h>

#include <type_traits>

#include "kernels/core/run_control.h"
#include "kernels/cuda/cuda_rates.h"
#include "tests/cpu/scan_case.h"
#include "tests/cuda/described_device.h"
#include "tests/cuda/emulator/kernels.h"

namespace attnd::testing {
namespace {

using Decays = ScanSpec::Decays;

// So slow that a launch takes one segment of each line, a few, and all.
constexpr int kSpeeds[] = {1, 300, 2'000};

// Lines of three segments, of two, of one and of none.
ScanSpec Lines(ScanSpec spec) {
  spec.B = 4;
  spec.Nq = 600;
  spec.Nk = 620;
  spec.H = 2;
  spec.Hkv = 1;
  spec.D = 9;
  spec.Dv = 7;
  spec.seqs = {{.nq = 100, .nk = 120, .offset = 20},
               {.nq = 600, .nk = 620, .offset = 20},
               {.nq = 380, .nk = 400, .offset = -30},
               {.nq = 0, .nk = 0, .offset = 0}};
  return spec.params.rule == ScanRule::kDelta ? Delta(spec) : spec;
}

// Of walks of whole lines, or of their segments over columns backward.
int64_t LaunchesOf(Device* device, ScanCase* c) {
  static_cast<void>(emu::TakeLaunches());
  c->Run(device);
  int64_t launches = 0;
  for (const auto& [kernel, count] : emu::TakeLaunches()) {
    const bool is_forward =
        kernel.starts_with("attnd::cuda::ScanForward<") && kernel.ends_with(" true>");
    const bool is_backward =
        kernel.starts_with("attnd::cuda::ScanBackward<") && kernel.ends_with(" false>");
    if (is_forward || is_backward) launches += count;
  }
  return launches;
}

void ExpectSameBitsOfCuts(const ScanSpec& spec, bool has_cuts) {
  std::vector<std::unique_ptr<ScanCase>> cases;
  std::vector<int64_t> launches;
  for (const int speed : kSpeeds) {
    cases.push_back(std::make_unique<ScanCase>(spec));
    launches.push_back(LaunchesOf(NewDescribedDevice(2, speed).get(), cases.back().get()));
    EXPECT_TRUE(cases.back()->GuardsHold());
    for (size_t i = 0; i < cases[0]->Outputs().size(); ++i) {
      EXPECT_EQ(cases[0]->Outputs()[i]->bytes(), cases.back()->Outputs()[i]->bytes())
          << "speed " << speed << ", output " << i;
    }
  }
  // The walk forward, that for rows and the one backward: two more of each.
  EXPECT_EQ(launches[0], launches[2] + (has_cuts ? 6 : 0));
  ExpectSame(*cases[0], {.out = 2e-5, .grad = 1e-4});
}

TEST(ScanCuts, GiveTheBitsOfOneLaunch) {
  for (const Decays decays : {Decays::kNone, Decays::kKey, Decays::kFeature}) {
    for (const bool all : {false, true}) {
      ScanSpec spec = {.params = {.rule = ScanRule::kDelta, .causal = true},
                       .decays = decays,
                       .beta = all,
                       .state = all,
                       .final = all};
      ExpectSameBitsOfCuts(Lines(spec), true);
    }
  }
  ExpectSameBitsOfCuts(Lines({.params = {.causal = true}}), false);
}

// Blocks that share a line's columns all read z, and one of them writes it.
TEST(ScanCuts, GiveTheBitsOfOneLaunchWhereBlocksShareALine) {
  ScanSpec spec = Delta({.B = 1, .H = 1, .Hkv = 1, .Nq = 600, .Nk = 600, .D = 520, .Dv = 20});
  spec.state = spec.final = true;
  spec.decays = Decays::kKey;
  ExpectSameBitsOfCuts(spec, true);
}

// The largest key so far, and the largest lift of later queries, of a line of several launches:
// both come from the launch before.
TEST(ScanCuts, ShiftsGoOnWhereTheyEnded) {
  constexpr int64_t kN = (int64_t{1} << 13) + 100;
  for (const ScanDen den : {ScanDen::kOne, ScanDen::kAdd}) {
    ScanSpec spec = {.B = 1, .H = 1, .Hkv = 1, .Nq = kN, .Nk = kN, .D = 4, .Dv = 4};
    spec.params = {.map = FeatureMap::kExp, .causal = true, .den = den, .scale = 1e-3};
    const auto change = [](ScanCase* c) {
      for (int64_t d = 0; d < 4; ++d) c->k.Set(0, 0, 50, d, 120);
      for (int64_t n = 0; n < kN; ++n) {
        for (int64_t d = 0; d < 4; ++d) c->q.Set(0, 0, n, d, c->q.Get(0, 0, n, d) - 90);
      }
    };
    ExpectMatchesPlain(spec, "cuda", {.out = 1e-4, .grad = 1e-4}, change);
  }
}

// The clock is read before each launch: later and later, until the run has not ended.
TEST(ScanCuts, ARunEndsBetweenThem) {
  using Time = RunControl::Clock::time_point;
  constexpr int64_t kSegments = 6, kN = kSegments * 256;
  const std::unique_ptr<OnHost> device = NewDescribedDevice(2, 1);
  ScanSpec spec = Delta({.B = 1, .H = 1, .Nq = kN, .Nk = kN, .D = 8, .Dv = 8});
  const ScanCase c(spec);
  const ScanProblem problem = c.Problem();
  ScanGradProblem grad = c.GradProblem();
  static int reads;
  const auto stops = [&](const Launch& launch) {
    for (int last = 1;; ++last) {
      reads = 0;
      RunControl control(0, 0, [] { return Time(std::chrono::hours(++reads)); });
      control.StopAt(Time(std::chrono::hours(last)));
      BufferPool pool(0, /*poison=*/true);
      Stream stream(*device, &pool, &control);
      const DeviceStatus status = device->Run(stream, launch);
      if (status.ok()) return last;
      EXPECT_EQ(status.code(), DeviceStatus::Code::kStopped);
    }
  };
  EXPECT_GE(stops(ScanArgs{.params = spec.params, .problems = {problem}}), kSegments);
  EXPECT_GE(stops(ScanGradArgs{.params = spec.params, .problems = {grad}}), 2 * kSegments);
}

// A dry run reads no tensor: those of one head stand for any number.
template <class Problem>
double PredictedSeconds(Device& device, Problem problem, const ScanParams& params, int64_t heads) {
  ForEachView(problem, [&](const View& view) {
    if (view.given()) const_cast<View&>(view).shape.dims[1] = heads;
  });
  Stream dry(device, nullptr);
  if constexpr (std::is_same_v<Problem, ScanProblem>) {
    EXPECT_TRUE(device.Run(dry, ScanArgs{.params = params, .problems = {problem}}).ok());
  } else {
    EXPECT_TRUE(device.Run(dry, ScanGradArgs{.params = params, .problems = {problem}}).ok());
  }
  return dry.work().seconds;
}

// One head was predicted to take a quarter of what four take, side by side.
TEST(ScanPrediction, FewHeadsTakeAsLongAsOne) {
  const std::unique_ptr<OnHost> device = NewDescribedDevice(132, 1000);
  for (const ScanRule rule : {ScanRule::kDelta, ScanRule::kSum}) {
    for (const Decays decays : {Decays::kNone, Decays::kFeature}) {
      ScanSpec spec = {.B = 1, .H = 1, .Hkv = 1, .Nq = 1024, .Nk = 1024, .D = 64, .Dv = 64};
      spec.params = {.causal = true};
      spec.decays = decays;
      if (rule == ScanRule::kDelta) spec = Delta(spec);
      const ScanCase c(spec);
      const auto expect = [&](const auto& problem) {
        const auto seconds = [&](int64_t heads) {
          return PredictedSeconds(*device, problem, spec.params, heads);
        };
        const double one = seconds(1);
        // Of the sum rule each head has four blocks, one for each segment.
        EXPECT_NEAR(seconds(4), one, 0.05 * one);
        EXPECT_GT(seconds(132 * 8), 1.9 * seconds(132 * 4));
      };
      expect(c.Problem());
      expect(c.GradProblem());
    }
  }
}

TEST(ScanPrediction, ABlockHasOneProcessor) {
  const cuda::Cuda cuda = {.processors = 132, .flops = 132e12, .bytes_per_second = 1.32e12};
  const double launch = cuda::Cuda::kLaunchSeconds;
  const auto of_blocks = [&](double flops, double bytes, double blocks) {
    return cuda.Seconds(flops, bytes, flops / blocks, bytes / blocks) - launch;
  };
  EXPECT_NEAR(of_blocks(1e12, 0, 1), 1, 1e-9);
  EXPECT_NEAR(of_blocks(1e12, 0, 4), 0.25, 1e-9);
  EXPECT_NEAR(of_blocks(1e12, 0, 132), 1 / 132.0, 1e-9);
  EXPECT_NEAR(of_blocks(1e12, 0, 1000), 1 / 132.0, 1e-9);
  EXPECT_NEAR(of_blocks(0, 1e10, 1), 1, 1e-9);
  EXPECT_NEAR(of_blocks(0, 1e10, 264), 1 / 132.0, 1e-9);
  // One that is longer than the others ends last.
  EXPECT_NEAR(cuda.Seconds(1e12, 0, 0.5e12, 0) - launch, 0.5, 1e-9);
}

}  // namespace
}  // namespace attnd::testing
