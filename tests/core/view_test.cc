#include "kernels/core/view.h"

#include <gtest/gtest.h>

#include "kernels/core/status.h"

namespace attnd {
namespace {

TEST(View, DenseStridesFollowTheMemoryOrder) {
  const Shape shape = {2, 3, 5, 7};
  EXPECT_EQ(DenseView(nullptr, DType::kF32, shape).stride,
            (std::array<int64_t, kMaxRank>{105, 35, 7, 1}));
  // Memory runs b, n, h, d: a step in h is one row of d, a step in n all heads of it.
  EXPECT_EQ(DenseView(nullptr, DType::kF32, shape, Layout::kBNHD).stride,
            (std::array<int64_t, kMaxRank>{105, 7, 21, 1}));
  EXPECT_EQ(DenseView(nullptr, DType::kF32, {2, 3, 5}, Layout::kBNHD).stride,
            (std::array<int64_t, kMaxRank>{15, 5, 1}));
}

TEST(View, AbsentIsNotTheSameAsWithoutData) {
  EXPECT_FALSE(View{}.given());
  EXPECT_TRUE(DenseView(nullptr, DType::kF16, {1, 1, 0, 4}).given());
  EXPECT_EQ(DenseView(nullptr, DType::kF16, {1, 2, 3, 4}).bytes(), 48);
}

TEST(Shape, PrintsAndCounts) {
  EXPECT_EQ(ToString(Shape{1, 8, 512, 64}), "[1,8,512,64]");
  EXPECT_EQ(ToString(Shape{}), "[]");
  EXPECT_EQ((Shape{2, 0, 3}).size(), 0);
  EXPECT_FALSE((Shape{1, 2}) == (Shape{1, 2, 1}));
}

TEST(Reasons, AllAtOnceAndTheCallersErrorWins) {
  Reasons reasons("local");
  EXPECT_TRUE(reasons.status().ok());
  reasons.Unserved("bias is not served by this version, got [1,1,4,4]");
  EXPECT_EQ(reasons.status().code(), absl::StatusCode::kUnimplemented);
  reasons.Invalid("window_left must be >= -1, got ", -3);
  EXPECT_EQ(reasons.status(),
            absl::InvalidArgumentError("local: bias is not served by this version, got [1,1,4,4]\n"
                                       "local: window_left must be >= -1, got -3"));
}

}  // namespace
}  // namespace attnd
