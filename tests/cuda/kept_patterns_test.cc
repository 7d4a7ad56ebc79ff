// Copies of computed patterns that a forward keeps for its gradient.
#include <gtest/gtest.h>

#include <memory>

#include "tests/cuda/pattern_run.h"

namespace attnd::testing {
namespace {

constexpr PatternSizes kSizes = {.Nq = 512, .Nk = 512, .nq = 300, .nk = 500, .B = 2};
// Of both sequences.
constexpr int64_t kTiles = 2 * 5 * 8;

// Symptom: a backward computed all masks twice, five microseconds each.
TEST(CudaKeptPatterns, ABackwardComputesMasksOnce) {
  const auto device = NewDevice(int64_t{1} << 30);
  const PatternRun run(kSizes);
  const auto apart = run.WithGradient(*device, nullptr);
  EXPECT_EQ(run.masks->tiles, 2 * kTiles);
  const auto kept = run.WithGradient(*device, std::make_shared<AttendKept>());
  EXPECT_EQ(run.masks->tiles, 3 * kTiles);
  EXPECT_EQ(apart, kept);
}

TEST(CudaKeptPatterns, PlansHoldThemUntilTheGradientHasRun) {
  const auto device = NewDevice(int64_t{1} << 30);
  const PatternRun run(kSizes);
  for (const bool keeps : {false, true}) {
    const auto kept = [&] { return keeps ? std::make_shared<AttendKept>() : nullptr; };
    const int64_t before = device->memory().stats().used_bytes;
    const int64_t planned = run.PlannedBytes(*device, kept());
    EXPECT_EQ(device->memory().stats().used_bytes, before);
    // What the run takes beside its arrays, whose sizes are rounded up.
    const int64_t arrays = 2 * (5 * 512 + 4 * 512) * int64_t{sizeof(float)};
    run.WithGradient(*device, kept());
    const int64_t taken = device->memory().stats().peak_bytes - arrays;
    EXPECT_GE(planned, kTiles * int64_t{sizeof(TileMask)});
    EXPECT_LE(taken / 9 * 8, planned);
  }
}

}  // namespace
}  // namespace attnd::testing
