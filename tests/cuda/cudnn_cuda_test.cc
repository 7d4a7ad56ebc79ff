// Large attention by cuDNN, on a device or the emulator's stand-in: right in every form, and the
// same bits alone, in a batch and in a list.
#include <gtest/gtest.h>

#include <vector>

#include "tests/cuda/large_attention.h"

namespace attnd::testing {
namespace {

class CudnnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (AttentionLibraryOf(device).name.empty()) {
      GTEST_SKIP() << AttentionLibraryOf(device).why_not;
    }
  }
  // How many calls the library is asked for.
  int64_t CallsOf(const std::vector<LargeAttention*>& attentions) {
    const int64_t before = AttentionLibraryOf(device).calls;
    RunAttention(device, attentions);
    return AttentionLibraryOf(device).calls - before;
  }

  Device& device = CpuOf("cuda", 1);
};

TEST_F(CudnnCuda, EveryQuerySeesAllKeys) {
  LargeAttention attention({.dtype = DType::kBF16, .D = 48, .Dv = 80});
  EXPECT_GT(CallsOf({&attention}), 0);
  attention.Expect();
}

TEST_F(CudnnCuda, CausalWithMoreKeysThanQueries) {
  AttentionSizes sizes = CausalSizes(DType::kF16);
  sizes.layout = Layout::kBNHD;
  LargeAttention attention(sizes);
  EXPECT_GT(CallsOf({&attention}), 0);
  attention.Expect();
}

TEST_F(CudnnCuda, WindowsOfBothSidesAndOfOne) {
  for (const int64_t hi : {int64_t{128}, kUnbounded}) {
    LargeAttention attention(
        {.H = 48, .Hkv = 48, .Nq = 768, .Nk = 768, .lo = -255, .hi = hi, .lengths = {{768, 768}}});
    EXPECT_GT(CallsOf({&attention}), 0);
    attention.Expect();
  }
}

// The middle rows see the first key of the tile of key 520 alone, and of the window all of the tile
// of key 128 but that. A head of the first sequence of two is computed again.
TEST_F(CudnnCuda, ValuesThatAreNotFiniteDoNotSpread) {
  AttentionSizes causal = CausalSizes(DType::kBF16);
  causal.lengths = {{512, 768}, {512, 768}};
  const AttentionSizes window = {
      .H = 48, .Hkv = 48, .Nq = 768, .Nk = 768, .lo = -255, .hi = 128, .lengths = {{768, 768}}};
  for (const AttentionSizes& sizes : {causal, window}) {
    LargeAttention attention(sizes);
    RunAttention(device, {&attention});
    const size_t last = sizes.lengths.size() - 1;
    const std::vector<double> finite = attention.ResultsOf(last);
    attention.MakeInfinite(0, 520);
    if (sizes.lo != kUnbounded) attention.MakeInfinite(0, 128);
    EXPECT_GT(CallsOf({&attention}), 0);
    attention.Expect();
    EXPECT_EQ(attention.ResultsOf(last) == finite, last > 0);
  }
}

// The second one of the batch is the library's, the first one is not.
TEST_F(CudnnCuda, BatchesAndListsHaveTheBitsOfTheirSequences) {
  LargeAttention dense({.Nq = 600, .Nk = 600, .lengths = {{500, 512}, {512, 512}}}),
      causal(CausalSizes(DType::kF16));
  EXPECT_GT(CallsOf({&dense, &causal}), 0);
  dense.Expect();
  causal.Expect();
  for (const LargeAttention* batch : {&dense, &causal}) {
    for (size_t b = 0; b < batch->sizes.lengths.size(); ++b) {
      LargeAttention alone = batch->Alone(b);
      RunAttention(device, {&alone});
      EXPECT_EQ(alone.ResultsOf(0), batch->ResultsOf(b)) << "sequence " << b;
    }
  }
}

}  // namespace
}  // namespace attnd::testing
