// What the emulator counts of attend's kernel of plain blocks.
#include <gtest/gtest.h>

#include "tests/cuda/emulator/options.h"
#include "tests/cuda/large_attention.h"
#include "tests/plain/cpus.h"

namespace attnd::testing {
namespace {

// Blocks whose sums are not finite are computed again. No other may be: nobody would see that its
// first results are wrong.
TEST(AttendPlain, FiniteBlocksAreComputedOnce) {
  struct Form {
    DType dtype;
    int64_t N, D, products;  // of a warp for a tile of 64 x 64
  };
  // Products of 16 x 8 x 8 and three or four parts; of 16 x 8 x 16.
  for (const Form& form :
       {Form{DType::kF32, 128, 64, 8 * 8 * (3 + 4)}, Form{DType::kF32, 128, 128, 8 * 16 * (3 + 4)},
        Form{DType::kBF16, 320, 64, 2 * 8 * 4}, Form{DType::kF16, 320, 128, 2 * 8 * 8}}) {
    SCOPED_TRACE(form.D);
    LargeAttention one({.dtype = form.dtype,
                        .H = 4,
                        .Hkv = 2,
                        .Nq = form.N,
                        .Nk = form.N,
                        .D = form.D,
                        .Dv = form.D,
                        .lengths = {{form.N, form.N}}});
    emu::TakeCounters();
    RunAttention(CpuOf("cuda", 1), {&one});
    one.Expect();
    const emu::Counters counted = emu::TakeCounters();
    const int64_t tiles = 4 * (form.N / 64) * (form.N / 64);
    EXPECT_EQ(counted.mma_tf32 + counted.mma_bf16 + counted.mma_f16, tiles * 4 * form.products);
  }
}

}  // namespace
}  // namespace attnd::testing
