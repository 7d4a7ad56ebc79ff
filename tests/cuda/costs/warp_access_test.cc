// What an instruction of a warp costs: sectors of memory, passes of shared memory.
#include "tests/cuda/costs/warp_access.h"

#include <gtest/gtest.h>

namespace attnd::testing {
namespace {

constexpr uintptr_t kBase = 4096;

// Lane i < lanes accesses `bytes` at i * stride.
WarpAccess Strided(int bytes, uintptr_t stride, int lanes = 32) {
  WarpAccess access{.bytes = bytes};
  for (int i = 0; i < lanes; ++i) access.Add(i, kBase + static_cast<uintptr_t>(i) * stride);
  return access;
}

TEST(WarpAccess, SectorsAreCountedOnce) {
  EXPECT_EQ(Strided(4, 4).Sectors(), 4);
  EXPECT_EQ(Strided(2, 2).Sectors(), 2);
  EXPECT_EQ(Strided(16, 16).Sectors(), 16);
  EXPECT_EQ(Strided(4, 8).Sectors(), 8);
  EXPECT_EQ(Strided(4, 1024).Sectors(), 32);
  EXPECT_EQ(Strided(4, 0).Sectors(), 1);
  EXPECT_EQ(Strided(4, 4, 9).Sectors(), 2);
}

TEST(WarpAccess, BytesAreThoseThatDiffer) {
  EXPECT_EQ(Strided(4, 4).Bytes(), 128);
  EXPECT_EQ(Strided(4, 0).Bytes(), 4);
  EXPECT_EQ(Strided(8, 8, 3).Bytes(), 24);
}

TEST(WarpAccess, OneWordForSeveralLanesIsAlike) {
  EXPECT_TRUE(Strided(4, 0).IsAlike());
  EXPECT_FALSE(Strided(4, 0, 1).IsAlike());
  EXPECT_FALSE(Strided(4, 4).IsAlike());
}

struct PassCase {
  int bytes;
  uintptr_t stride;
  int lanes;
  int64_t taken, least;
};

TEST(WarpAccess, WordsOfOneBankTakeTurns) {
  const PassCase cases[] = {
      {4, 4, 32, 1, 1},  {4, 8, 32, 2, 1},    {4, 128, 32, 32, 1}, {4, 132, 32, 1, 1},
      {4, 0, 32, 1, 1},  {2, 2, 32, 1, 1},    {1, 1, 32, 1, 1},    {4, 128, 5, 5, 1},
      {8, 8, 32, 2, 2},  {8, 16, 32, 4, 2},   {16, 16, 32, 4, 4},  {16, 128, 32, 32, 4},
      {16, 0, 32, 4, 4}, {16, 144, 32, 4, 4}, {8, 8, 16, 1, 1},    {4, 4, 0, 0, 0},
  };
  for (const PassCase& c : cases) {
    const WarpAccess::SharedPasses passes = Strided(c.bytes, c.stride, c.lanes).Shared();
    EXPECT_EQ(passes.taken, c.taken) << c.bytes << " bytes, stride " << c.stride;
    EXPECT_EQ(passes.least, c.least) << c.bytes << " bytes, stride " << c.stride;
  }
}

}  // namespace
}  // namespace attnd::testing
