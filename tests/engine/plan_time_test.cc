// Time that planning takes at the limits of sizes: it does not grow with the heads.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "kernels/ops/ops.h"
#include "tests/engine/cpu_engine.h"
#include "tests/engine/plan_limits.h"

namespace attnd::testing {
namespace {

constexpr int64_t kMostHeads = int64_t{1} << 20;  // B * H

using PlanTime = PlanLimits;

TEST_F(PlanTime, ManyHeadsPlanAsFastAsManySequences) {
  ForEachKind([](const char* method, Direction direction) {
    for (const int64_t B : {1 << 4, 1 << 16}) {
      for (const int64_t N : {0, 1, 1 << 10}) {
        const int64_t H = kMostHeads / B;
        const Call call = MakeCall(method, {.B = B, .H = H, .Hkv = H, .Nq = N, .Nk = N}, direction);
        const auto start = std::chrono::steady_clock::now();
        const auto plan = MakePlan(call);
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        EXPECT_LT(took.count(), 1) << B << " sequences of " << N;
        ASSERT_NE(plan, nullptr);
        if (N == 1) {
          EXPECT_EQ(plan->visible_pairs, kMostHeads);
        }
      }
    }
  });
}

// A plan knows what drawing takes without drawing.
TEST(PlanTimeOfDraws, DoesNotGrowWithTheTable) {
  const auto engine = CpuEngine({.threads = 1});
  constexpr Distribution kKinds[] = {Distribution::kNormal, Distribution::kOrthogonalRows};
  for (const Distribution distribution : kKinds) {
    const Shape shape = {1 << 18, 64};
    ASSERT_EQ(shape.size(), kMostDrawn);
    double least = 1;  // other programs run, too
    for (int tries = 0; tries < 5; ++tries) {
      const auto start = std::chrono::steady_clock::now();
      Stream dry(engine->device(), /*memory=*/nullptr);
      Ops ops(dry, /*tape=*/nullptr);
      ops.Draw({.name = "w", .distribution = distribution}, {shape});
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      ASSERT_TRUE(ops.status().ok()) << ops.status();
      least = std::min(least, took.count());
    }
    EXPECT_LT(least, 1e-3);
  }
}

}  // namespace
}  // namespace attnd::testing
