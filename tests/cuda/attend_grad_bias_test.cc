// What the gradient of a bias that repeats takes of a device: one block met all pairs, in a launch
// that nothing could end, at the whole device's predicted rate; and a block walked over all tiles
// of keys before its own.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "kernels/cuda/attend/attend_grad_plan.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/cpu/attend_grad_case.h"
#include "tests/cuda/emulator/options.h"

namespace attnd::testing {
namespace {

using cuda::attend_grad::BiasShares;
using cuda::attend_grad::GradMemory;
using cuda::attend_grad::GradPlan;

Device& Cuda() { return CpuOf("cuda", 1); }

// A gradient of bias alone, as a plan sees it.
struct Large {
  int64_t B = 1, H = 1, Nq = 64, Nk = 64;
  std::string repeats;
  bool gathers = false, is_listed = false;
  DType dtype = DType::kF32;

  AttendGradProblem problem() const {
    const auto view = [](DType of, const Shape& shape) { return DenseView(nullptr, of, shape); };
    AttendGradProblem p;
    AttendProblem& f = p.forward;
    f.q = f.out = p.dout = view(dtype, {B, H, Nq, 64});
    f.k = f.v = view(dtype, {B, H, Nk, 64});
    f.lse = view(DType::kF32, {B, H, Nq});
    f.seqs = {{.nq = Nq,
               .nk = Nk,
               .visible_pairs = static_cast<double>(Nq * Nk),
               .visible_tiles = static_cast<double>(Tiles(Nq) * Tiles(Nk)),
               .gathers = gathers,
               .is_listed = is_listed,
               .count = B}};
    const auto kept = [&](char letter, int64_t n) {
      return repeats.find(letter) == std::string::npos ? n : 1;
    };
    p.dterms.bias = view(gathers || is_listed ? DType::kF32 : dtype,
                         {kept('b', B), kept('h', H), kept('q', Nq), kept('k', Nk)});
    f.terms.bias = p.dterms.bias;
    f.terms.bias.shape = {B, H, Nq, Nk};
    return p;
  }
  static int64_t Tiles(int64_t n) { return (n + kTile - 1) / kTile; }
};

TEST(AttendGradBias, BlocksMeetFewPairsAndScratchIsBounded) {
  for (const int64_t N : {64, 1024, 8192}) {
    for (const char* repeats : {"bh", "bhq", "bhk", "bhqk", "hqk", "bqk"}) {
      for (const bool gathers : {false, true}) {
        SCOPED_TRACE(::testing::Message() << "N" << N << " " << repeats << gathers);
        const Large large = {
            .B = 8, .H = 32, .Nq = N, .Nk = N, .repeats = repeats, .gathers = gathers};
        const AttendGradProblem problem = large.problem();
        GradPlan plan(problem, {}, /*is_dry=*/true, /*alike=*/1);
        const BiasShares& shares = plan.data.bias_shares;
        const int64_t tiles = Large::Tiles(N);
        const double pairs = static_cast<double>(large.B * large.H * tiles * tiles) /
                             static_cast<double>(plan.bias_blocks() * shares.rounds());
        EXPECT_LE(pairs, std::max<int64_t>(32, gathers ? tiles : 0));
        EXPECT_LE(shares.of_round, 32);
        EXPECT_LE(shares.rounds(), 256);
        GradMemory memory(nullptr);
        plan.Place(&memory);
        GradMemory rows(nullptr);
        rows.Take<cuda::attend_grad::GradRow>(large.B * large.H * N);
        const int64_t sequences = problem.dterms.bias.shape[0];
        EXPECT_LE(memory.bytes() - rows.bytes(), sequences * (int64_t{33} << 20));
      }
    }
  }
}

TEST(AttendGradBias, WarpsMeetFewLists) {
  for (const char* repeats : {"bh", "bhq", "bhk", "bhqk"}) {
    const Large large = {
        .B = 8, .H = 32, .Nq = 1024, .Nk = 1024, .repeats = repeats, .is_listed = true};
    const AttendGradProblem problem = large.problem();
    const GradPlan plan(problem, {}, /*is_dry=*/true, /*alike=*/1);
    const double lists = static_cast<double>(large.B * large.H * large.Nq) /
                         static_cast<double>(plan.bias_blocks() * plan.data.bias_shares.rounds());
    EXPECT_LE(lists, 16) << repeats;
  }
}

double SecondsOf(Device& device, const Large& large, bool wants_bias) {
  AttendGradProblem problem = large.problem();
  if (!wants_bias) problem.dterms.bias = {};
  Stream stream(device, nullptr);
  EXPECT_TRUE(device.Run(stream, AttendGradArgs{.params = {}, .problems = {problem}}).ok());
  return stream.work().seconds;
}

// One block, which has one processor.
TEST(AttendGradBias, FewBlocksArePredictedAtTheRateOfTheirProcessors) {
  const CudaDevices found = NewCudaDevices({});
  auto& device = static_cast<cuda::CudaDevice&>(*found.devices.at(0));
  Large large = {.Nk = 64 * 1024, .repeats = "bh", .gathers = true};
  large.dtype = DType::kBF16;
  const double flops = 4.0 * 64 * static_cast<double>(large.Nq * large.Nk);
  const double seconds = SecondsOf(device, large, true) - SecondsOf(device, large, false);
  EXPECT_GE(seconds, flops / (0.1 * device.cuda().tensor_flops) * device.cuda().processors * 0.99);
}

// Barriers of a gradient of bias alone, a pair of tiles.
double BarriersOf(int64_t tiles, Slots slots) {
  GradCase c({.B = 2,
              .H = 1,
              .Hkv = 1,
              .Nq = tiles * kTile,
              .Nk = tiles * kTile,
              .slots = slots,
              .terms = "bias",
              .repeats = "b"},
             3);
  AttendGradProblem problem = c.Problem();
  problem.dq = problem.dk = problem.dv = {};
  emu::TakeCounters();
  RunAttendGrad(Cuda(), c.Params(), {problem});
  return static_cast<double>(emu::TakeCounters().barriers) / static_cast<double>(tiles * tiles);
}

TEST(AttendGradBias, AWalkStartsAtItsTile) {
  for (const Slots slots : {Slots::kNone, Slots::kInOrder}) {
    EXPECT_LE(BarriersOf(12, slots), 1.1 * BarriersOf(4, slots)) << static_cast<int>(slots);
  }
}

}  // namespace
}  // namespace attnd::testing
