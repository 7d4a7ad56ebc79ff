// The parts of the memory add up to the usable memory.
#include "server/memory_plan.h"

#include <gtest/gtest.h>

namespace attnd {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Regression: the default gave half to requests, and gRPC could take as much again and more.
TEST(MemoryPlan, TheWorstCaseFits) {
  for (const int64_t usable : {512, 1024, 2047, 2048, 4096, 100'000, 2'000'000}) {
    const MemoryPlan plan = PlanMemory(usable * kMiB, 0, 256 * kMiB);
    EXPECT_LE(plan.budget_bytes + plan.buffer_bytes + plan.retained_bytes + 192 * kMiB,
              usable * kMiB)
        << usable;
    EXPECT_GE(plan.buffer_bytes, plan.budget_bytes / 2 + 64 * kMiB) << usable;
    EXPECT_GE(plan.budget_bytes, usable * kMiB / 8) << usable;
  }
}

TEST(MemoryPlan, HalfOfTheMemoryFromTwoGib) {
  EXPECT_EQ(PlanMemory(2048 * kMiB, 0, 256 * kMiB).budget_bytes, 1024 * kMiB);
  EXPECT_EQ(PlanMemory(4096 * kMiB, 0, 256 * kMiB).budget_bytes, 2048 * kMiB);
  EXPECT_EQ(PlanMemory(4096 * kMiB, 0, 256 * kMiB).buffer_bytes, 1600 * kMiB);
  EXPECT_LT(PlanMemory(1024 * kMiB, 0, 256 * kMiB).budget_bytes, 512 * kMiB);
}

TEST(MemoryPlan, ABudgetThatIsAskedForIsTaken) {
  const MemoryPlan plan = PlanMemory(4096 * kMiB, 64 * kMiB, 256 * kMiB);
  EXPECT_EQ(plan.budget_bytes, 64 * kMiB);
  EXPECT_EQ(plan.retained_bytes, 16 * kMiB);
  EXPECT_EQ(plan.buffer_bytes, 128 * kMiB);
  const MemoryPlan tight = PlanMemory(1024 * kMiB, 1024 * kMiB, 256 * kMiB);
  EXPECT_EQ(tight.buffer_bytes, 576 * kMiB);
  EXPECT_EQ(PlanMemory(0, 0, 256 * kMiB).budget_bytes, 1024 * kMiB);
}

}  // namespace
}  // namespace attnd
