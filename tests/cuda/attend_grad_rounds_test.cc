// In how many launches blocks of attention's gradient meet their pairs of tiles: a block that meets
// all of them can take seconds, in a launch that nothing could end.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "tests/cpu/attend_grad_case.h"
#include "tests/cuda/described_device.h"
#include "tests/cuda/emulator/kernels.h"
#include "tests/cuda/large_gradient.h"

namespace attnd::testing {
namespace {

// So fast that a launch is one slice.
constexpr int kSpeed = 2000;

int64_t TakeLaunchesOf(const std::string& kernel) {
  int64_t launches = 0;
  for (const auto& [name, count] : emu::TakeLaunches()) {
    if (name.starts_with("attnd::cuda::attend_grad::" + kernel + "<")) launches += count;
  }
  return launches;
}

int64_t LaunchesOf(const std::string& kernel, const GradSizes& sizes) {
  const auto device = NewDescribedDevice(2, kSpeed);
  const GradCase c(sizes, 1);
  static_cast<void>(emu::TakeLaunches());
  RunAttendGrad(*device, c.Params(), {c.Problem()});
  return TakeLaunchesOf(kernel);
}

// 32 pairs of float32, 256 of 16 bits; 64 of these with the relative term.
TEST(AttendGradRounds, FollowFromThePairsOfABlock) {
  const GradSizes keys = {.H = 10, .Hkv = 1, .Nq = 129, .Nk = 40, .D = 8, .Dv = 8};
  EXPECT_EQ(LaunchesOf("GradKeys", keys), 1);
  GradSizes more = keys;
  more.H = 11;
  EXPECT_EQ(LaunchesOf("GradKeys", more), 2);
  // In gather orders a block has an eighth of the tiles: here at most one.
  more.slots = Slots::kGather;
  more.H = 200;
  EXPECT_GT(LaunchesOf("GradKeys", more), 2);
  more = keys;
  more.H = 86;
  more.q = more.k = more.v = more.out = DType::kF16;
  EXPECT_EQ(LaunchesOf("GradKeys", more), 2);
  more.H = 22;
  EXPECT_EQ(LaunchesOf("GradKeys", more), 1);
  more.terms = "relative";
  EXPECT_EQ(LaunchesOf("GradKeys", more), 2);

  GradSizes queries = {.Nq = 40, .Nk = 64 * 32, .D = 8, .Dv = 8};
  EXPECT_EQ(LaunchesOf("GradQueries", queries), 1);
  queries.Nk += 1;
  EXPECT_EQ(LaunchesOf("GradQueries", queries), 2);
  // Rows of more columns take longer.
  queries.Nk = 64 * 17, queries.D = 192;
  EXPECT_EQ(LaunchesOf("GradQueries", queries), 2);
}

// Of 41 tiles a query sees three at most.
TEST(AttendGradRounds, FollowFromWhatPatternsShow) {
  const auto device = NewDescribedDevice(2, kSpeed);
  constexpr int64_t N = 64 * 41;
  LargeGradient gradient({.dtype = DType::kF32,
                          .H = 1,
                          .Hkv = 1,
                          .Nq = N,
                          .Nk = N,
                          .lo = -100,
                          .hi = 0,
                          .lengths = {{N, N}}});
  static_cast<void>(emu::TakeLaunches());
  RunGradients(*device, {&gradient});
  EXPECT_EQ(TakeLaunchesOf("GradQueries"), 1);
}

}  // namespace
}  // namespace attnd::testing
