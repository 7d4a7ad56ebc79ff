// The parts of the memory add up to the usable memory.
#include "server/memory_split.h"

#include <gtest/gtest.h>

namespace attnd {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Regression: the default gave half to requests, and gRPC could take as much again and more.
TEST(MemorySplit, TheWorstCaseFits) {
  for (const int64_t usable : {512, 1024, 2047, 2048, 4096, 100'000, 2'000'000}) {
    for (const int64_t most_retained : {256, 4096}) {
      const MemorySplit split = SplitMemory(usable * kMiB, 0, most_retained * kMiB);
      EXPECT_LE(split.budget_bytes + split.buffer_bytes + split.retained_bytes + 192 * kMiB,
                usable * kMiB)
          << usable;
      EXPECT_GE(split.buffer_bytes, split.budget_bytes / 2 + 64 * kMiB) << usable;
      EXPECT_GE(split.budget_bytes, usable * kMiB / 8) << usable;
    }
  }
}

TEST(MemorySplit, HalfOfTheMemoryFromTwoGib) {
  EXPECT_EQ(SplitMemory(2048 * kMiB, 0, 256 * kMiB).budget_bytes, 1024 * kMiB);
  EXPECT_EQ(SplitMemory(4096 * kMiB, 0, 256 * kMiB).budget_bytes, 2048 * kMiB);
  EXPECT_EQ(SplitMemory(4096 * kMiB, 0, 256 * kMiB).buffer_bytes, 1600 * kMiB);
  EXPECT_LT(SplitMemory(1024 * kMiB, 0, 256 * kMiB).budget_bytes, 512 * kMiB);
}

TEST(MemorySplit, ABudgetThatIsAskedForIsTaken) {
  const MemorySplit split = SplitMemory(4096 * kMiB, 64 * kMiB, 256 * kMiB);
  EXPECT_EQ(split.budget_bytes, 64 * kMiB);
  EXPECT_EQ(split.retained_bytes, 16 * kMiB);
  EXPECT_EQ(split.buffer_bytes, 128 * kMiB);
  const MemorySplit tight = SplitMemory(1024 * kMiB, 1024 * kMiB, 256 * kMiB);
  EXPECT_EQ(tight.buffer_bytes, 576 * kMiB);
  EXPECT_EQ(SplitMemory(0, 0, 256 * kMiB).budget_bytes, 1024 * kMiB);
}

}  // namespace
}  // namespace attnd
