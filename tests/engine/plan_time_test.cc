// Time that planning takes at the limits of sizes: it does not grow with the heads.
#include <gtest/gtest.h>

#include <chrono>

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

}  // namespace
}  // namespace attnd::testing
