// What the host prepares for kernels that walk over arrays: elements that 31 bits do not count, and
// divisions.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda/along/lines.h"
#include "kernels/cuda/divider.h"
#include "kernels/cuda/element/element_walk.h"

namespace attnd {
namespace {

// Offsets of a dry view whose elements 31 bits do not count.
TEST(FarArrays, WalksCoverEveryElementOnce) {
  View out = DenseView(nullptr, DType::kBF16, Shape{3, 5, int64_t{1} << 30});
  View a = out;
  a.stride[0] = int64_t{1} << 40;
  const View none;
  const std::vector<cuda::ElementWalk> walks = cuda::WalksOf({&a, &none, &none, &out});
  int64_t elements = 0;
  for (const auto& walk : walks) {
    elements += walk.elements;
    EXPECT_LT(walk.elements, uint32_t{1} << 31);
  }
  EXPECT_EQ(elements, out.shape.size());
  const std::vector<cuda::Lines> lines =
      cuda::LinesOf({a, out, {}, {}}, /*axis=*/1, cuda::Lines::kColumnChunk);
  int64_t count = 0;
  for (const auto& piece : lines) {
    count += piece.count;
    int64_t offset[cuda::Lines::kViews];
    piece.Offsets(piece.count - 1, offset);
    EXPECT_GT(offset[0], int64_t{1} << 29);
  }
  EXPECT_EQ(count, 3 * (int64_t{1} << 30));
}

TEST(FarArrays, DividersAreExact) {
  for (int64_t d : {1, 2, 3, 5, 7, 64, 641, 65535, 65537, 1 << 30, (1 << 30) + 1, 0x7fffffff}) {
    const cuda::Divider divider(d);
    for (int64_t n :
         {int64_t{0}, d - 1, d, d + 1, 2 * d - 1, int64_t{0x7ffffffe}, int64_t{0x7fffffff}}) {
      if (n > 0x7fffffff) continue;
      EXPECT_EQ(divider.Quotient(static_cast<uint32_t>(n)), n / d) << n << " / " << d;
    }
  }
}

}  // namespace
}  // namespace attnd
