// In how many launches blocks of attention's gradient meet their pairs of tiles: a block that meets
// all of them can take seconds, in a launch that nothing could end.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "tests/cpu/attend_grad_case.h"
#include "tests/cuda/described_device.h"
#include "tests/cuda/emulator/kernels.h"
#include "tests/cuda/emulator/options.h"
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

// 32 pairs of float32, 256 of 16 bits, 16 with the relative term.
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
  more.H = 6;
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

// In a gather order, of 17 tiles of keys: all 9 of queries see the first one, and one each of the
// others.
Pattern OneLongRow() {
  constexpr int32_t kQueries = 9, kKeys = 17;
  Pattern pattern = {.Nq = kQueries * kTile, .Nk = kKeys * kTile};
  const auto add = [](TileRows& rows, Run run) { rows.runs.push_back(run); };
  const auto end = [](TileRows& rows) { rows.begin.push_back(std::ssize(rows.runs)); };
  end(pattern.by_key);
  for (int32_t key = 0; key < kKeys; ++key) {
    add(pattern.by_key, {.first = key % kQueries, .count = key == 0 ? kQueries : 1});
    end(pattern.by_key);
  }
  end(pattern.by_query);
  for (int32_t query = 0; query < kQueries; ++query) {
    for (int32_t key = 0; key < kKeys; ++key) {
      if (key == 0 || key % kQueries == query) add(pattern.by_query, {.first = key, .count = 1});
    }
    end(pattern.by_query);
  }
  pattern.visible_tiles = std::ssize(pattern.by_query.runs);
  pattern.visible_pairs = pattern.visible_tiles * kTile * kTile;
  for (int32_t slot = 0; slot < pattern.Nk; ++slot) pattern.key_rows.push_back(slot);
  return pattern;
}

// The busiest of eight blocks has three tiles, and 4 (9 + 1 + 1) pairs.
TEST(AttendGradRounds, OfGatherOrdersFollowFromTheBusiestBlock) {
  Pattern pattern = OneLongRow();
  const auto device = NewDescribedDevice(2, kSpeed);
  GradCase c({.H = 4, .Hkv = 1, .Nq = pattern.Nq, .Nk = pattern.Nk, .D = 8, .Dv = 8}, 1);
  c.seqs[0].visible_tiles = static_cast<double>(pattern.visible_tiles);
  c.seqs[0].gathers = true;
  c.seqs[0].pattern = std::make_shared<const Pattern>(std::move(pattern));
  static_cast<void>(emu::TakeLaunches());
  RunAttendGrad(*device, c.Params(), {c.Problem()});
  EXPECT_EQ(TakeLaunchesOf("GradKeys"), 2);
}

// Barriers of a gradient of one query in each of H heads, which share one key.
int64_t BarriersOf(int64_t H, Slots slots, DType dtype) {
  const auto device = NewDescribedDevice(2, kSpeed);
  GradSizes sizes = {.H = H, .Hkv = 1, .Nq = 1, .Nk = 1, .D = 8, .Dv = 8, .slots = slots};
  sizes.q = sizes.k = sizes.v = sizes.out = dtype;
  const GradCase c(sizes, 1);
  emu::TakeCounters();
  RunAttendGrad(*device, c.Params(), {c.Problem()});
  return emu::TakeCounters().barriers;
}

// A launch does not come to the heads of all others.
TEST(AttendGradRounds, WorkGrowsWithTheNumberOfHeads) {
  for (const Slots slots : {Slots::kNone, Slots::kInOrder, Slots::kByHead}) {
    EXPECT_LE(BarriersOf(2048, slots, DType::kF32), 4.4 * BarriersOf(512, slots, DType::kF32))
        << static_cast<int>(slots);
  }
}

}  // namespace
}  // namespace attnd::testing
