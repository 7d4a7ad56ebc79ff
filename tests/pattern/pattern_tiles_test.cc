// Estimates of visible tiles, by which devices plan memory for those that are computed.
#include <gtest/gtest.h>

#include <random>

#include "kernels/pattern/counts.h"
#include "kernels/pattern/shapes/blocks.h"
#include "kernels/pattern/shapes/grids.h"
#include "kernels/pattern/shapes/windows.h"

namespace attnd {
namespace {

PatternSeq Square(int64_t N, bool causal) {
  return {.Nq = N, .Nk = N, .lengths = {N, N}, .offset = 0, .causal = causal};
}

double RatioOf(const PatternSource& source, int64_t N) {
  return source.visible_tiles / CountsOf(source.build(), {N, N}).tiles;
}

// A plan may ask for more memory than the run takes, hardly for less.
void ExpectEnough(double ratio, double most) {
  EXPECT_GE(ratio, 0.97);
  EXPECT_LE(ratio, most);
}

TEST(PatternTiles, OfImagesAreEstimated) {
  constexpr int64_t kHeight = 96, kWidth = 128, N = kHeight * kWidth;
  for (const int64_t height : {1, 4, 7, 8, 16, 32}) {
    for (const int64_t width : {3, 8, 9, 16, 32}) {
      for (const int64_t flange : {0, 3, 8, 31}) {
        for (const bool causal : {false, true}) {
          const ImageBlocks image = {kHeight, kWidth, height, width, flange, flange};
          SCOPED_TRACE(testing::Message() << height << " x " << width << " flange " << flange
                                          << (causal ? " causal" : ""));
          ExpectEnough(RatioOf(ImageLocal2d(Square(N, causal), image), N), 3);
        }
      }
    }
  }
}

TEST(PatternTiles, OfBigBirdAreEstimated) {
  constexpr int64_t N = 8192;
  std::mt19937 random(1);
  for (const int64_t block : {1, 5, 16, 32, 48, 64, 100, 128}) {
    for (const int64_t r : {0, 1, 3}) {
      for (const int64_t half_window : {0, 1, 4}) {
        for (const int64_t globals : {0, 1, 70}) {
          BigBird bird{.block = block, .half_window = half_window, .globals = globals, .r = r};
          if (globals > 0) bird.left = bird.right = 0;
          const int64_t nb = bird.Blocks(N);
          bird.random.resize(static_cast<size_t>(bird.InnerRows(N) * r));
          for (int32_t& drawn : bird.random) drawn = static_cast<int32_t>(random() % nb);
          SCOPED_TRACE(testing::Message() << "block " << block << " r " << r << " window "
                                          << half_window << " globals " << globals);
          ExpectEnough(RatioOf(BigBirdSource(Square(N, false), bird), N), 1.7);
        }
      }
    }
  }
}

// Blocks nearly as long as the step between the rows that are sampled.
TEST(PatternTiles, OfBlocksOfAnyLengthAreEstimated) {
  constexpr int64_t N = 131072, kStep = N / 64;
  for (const int64_t block : {kStep - 1, kStep + 1, kStep / 2 - 1, 3 * kStep + 5}) {
    SCOPED_TRACE(block);
    const Window window{.block = block, .causal = true};
    const double ratio = RatioOf(WindowSource(N, N, window, {N, N}), N);
    EXPECT_GE(ratio, 0.9);
    EXPECT_LE(ratio, 1.1);
  }
}

}  // namespace
}  // namespace attnd
