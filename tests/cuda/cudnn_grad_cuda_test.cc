// Gradients of large attention by cuDNN, on a device or the emulator's stand-in: right in every
// form, and the library's only where they need not be deterministic.
#include <gtest/gtest.h>

#include <vector>

#include "tests/cuda/large_gradient.h"

namespace attnd::testing {
namespace {

class CudnnGradCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (AttentionLibraryOf(device).name.empty()) {
      GTEST_SKIP() << AttentionLibraryOf(device).why_not;
    }
  }
  // How many calls the library is asked for.
  int64_t CallsOf(const std::vector<LargeGradient*>& gradients, bool is_deterministic = false) {
    const int64_t before = AttentionLibraryOf(device).calls;
    RunGradients(device, gradients, is_deterministic);
    return AttentionLibraryOf(device).calls - before;
  }

  Device& device = CpuOf("cuda", 1);
};

TEST_F(CudnnGradCuda, OnRequestAlone) {
  LargeGradient gradient(GradientSizes());
  EXPECT_EQ(CallsOf({&gradient}, /*is_deterministic=*/true), 0);
  gradient.Expect();
  EXPECT_GT(CallsOf({&gradient}), 0);
  gradient.Expect();
}

TEST_F(CudnnGradCuda, EveryQuerySeesAllKeys) {
  LargeGradient gradient({.dtype = DType::kBF16, .H = 16, .Hkv = 16, .D = 48, .Dv = 72});
  EXPECT_GT(CallsOf({&gradient}), 0);
  gradient.Expect();
}

TEST_F(CudnnGradCuda, Bands) {
  AttentionSizes wide = WindowGradientSizes(DType::kF16, 0);
  wide.D = wide.Dv = 128, wide.layout = Layout::kBNHD;
  for (const AttentionSizes& sizes :
       {CausalGradientSizes(DType::kF16), WindowGradientSizes(DType::kBF16, kUnbounded), wide}) {
    LargeGradient gradient(sizes);
    EXPECT_GT(CallsOf({&gradient}), 0);
    gradient.Expect();
  }
}

// Key 720 is in a tile of which queries see some keys, but itself seen by nobody; key 600 is seen
// by the last queries.
TEST_F(CudnnGradCuda, WhatIsNotFiniteDoesNotSpread) {
  for (const int64_t row : {720, 600}) {
    LargeGradient gradient(CausalGradientSizes(DType::kBF16));
    gradient.MakeInfinite(0, row);
    EXPECT_GT(CallsOf({&gradient}), 0);
    gradient.Expect();
  }
}

// The second sequence of the batch is the library's, the first one is not.
TEST_F(CudnnGradCuda, BatchesAndLists) {
  AttentionSizes sizes = GradientSizes(DType::kBF16);
  sizes.Nq = sizes.Nk = 600, sizes.lengths = {{500, 512}, {512, 512}};
  LargeGradient batch(sizes), causal(CausalGradientSizes(DType::kBF16));
  EXPECT_GT(CallsOf({&batch, &causal}), 0);
  batch.Expect();
  causal.Expect();
}

}  // namespace
}  // namespace attnd::testing
