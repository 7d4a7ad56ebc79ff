// Transforms on the CUDA device: thread orders, lists, lengths of one to three passes.
#include <gtest/gtest.h>

#include <list>

#include "kernels/cuda/fft/fft_length.h"
#include "tests/cuda/lists.h"
#include "tests/plain/plain_fft.h"

namespace attnd::testing {
namespace {

TEST(FftCuda, OneResult) {
  std::list<TestArray> in, outs;
  std::vector<TestArray*> out;
  FftArgs args;
  for (Shape shape : {Shape{3, 20, 34}, Shape{64, 64}, Shape{1, 53, 59}, Shape{0, 5},
                      Shape{7, 5000}, Shape{5001, 3}, Shape{2, 2, 1, 1}, Shape{4099, 2}}) {
    in.push_back(TestArray::Random(static_cast<unsigned>(in.size()), DType::kF32, shape));
    outs.emplace_back(DType::kF32, shape);
    out.push_back(&outs.back());
    args.problems.push_back({in.back().view(), outs.back().view()});
  }
  ExpectOneResult(args, out);
}

TEST(FftCuda, LengthsAreCutIntoLevels) {
  for (int64_t n = 1; n < 20000; ++n) {
    const cuda::FftLength length(n);
    ASSERT_TRUE(length.smooth == n || length.smooth >= 2 * n - 1) << n;
    int64_t product = 1;
    for (int i = 0; i < length.count; ++i) {
      ASSERT_LE(length.levels[i].length, cuda::FftLevel::kMostLine);
      product *= length.levels[i].length;
      int64_t radices = 1;
      for (int r = 0; r < length.levels[i].count; ++r) radices *= length.levels[i].radices[r];
      ASSERT_EQ(radices, length.levels[i].length) << n;
    }
    ASSERT_EQ(product, length.smooth) << n;
  }
  EXPECT_EQ(cuda::FftLength(4096).count, 1);
  EXPECT_EQ(cuda::FftLength(53).smooth, 120);
  EXPECT_EQ(cuda::FftLength(int64_t{1} << 24).count, 2);
  EXPECT_EQ(cuda::FftLength(int64_t{1} << 25).count, 3);
  EXPECT_EQ(cuda::FftLength(int64_t{47 * 47 * 47} * 47).count, 2);
  // A prime near the largest of 31 bits.
  EXPECT_LE(cuda::FftLength(2147483647).count, cuda::FftLength::kMostLevels);
  EXPECT_EQ(cuda::FftLength(2147483647).passes(), 2 * cuda::FftLength(2147483647).count);
}

}  // namespace
}  // namespace attnd::testing
