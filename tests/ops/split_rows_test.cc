// Packed sequences as lists of problems: Ops::SplitRows, Ops::JoinRows and their gradients.
#include <gtest/gtest.h>

#include "kernels/ops/ops.h"
#include "tests/plain/plain_device.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {
namespace {

Tensor TensorOf(const std::vector<TestArray>& arrays) {
  std::vector<View> views;
  for (const TestArray& array : arrays) views.push_back(array.view());
  return Tensor(std::move(views), std::vector<std::shared_ptr<Buffer>>(arrays.size()));
}

class SplitRowsTest : public ::testing::Test {
 protected:
  PlainDevice device_;
  BufferPool pool_{int64_t{1} << 20, /*poison=*/true};
  Stream stream_{device_, &pool_};
  Tape tape_;
  Ops ops_{stream_, &tape_};

  // Two problems of [B,H,N,D]; the first has an empty segment.
  const std::vector<TestArray> x_ = {TestArray::Random(1, DType::kF32, {1, 2, 7, 3}),
                                     TestArray::Random(2, DType::kF32, {1, 2, 4, 3})};
  const RowCuts cuts_ = {{0, 3, 3, 7}, {0, 4}};
};

TEST_F(SplitRowsTest, SegmentsAreViews) {
  const Tensor parts = ops_.SplitRows(TensorOf(x_), 2, cuts_);
  ASSERT_TRUE(ops_.status().ok()) << ops_.status();
  ASSERT_EQ(parts.size(), 4u);
  EXPECT_EQ(parts[0].shape, (Shape{1, 2, 3, 3}));
  EXPECT_EQ(parts[1].shape, (Shape{1, 2, 0, 3}));
  EXPECT_EQ(ReadView(parts[2]).At({0, 1, 0, 2}), x_[0].Read().At({0, 1, 3, 2}));
  EXPECT_EQ(ReadView(parts[3]).values, x_[1].Read().values);
  EXPECT_EQ(device_.launches(), 0);
}

TEST_F(SplitRowsTest, JoinIsTheReverseAndSoAreTheGradients) {
  const Tensor x = TensorOf(x_);
  tape_.Watch(x);
  const Tensor parts = ops_.SplitRows(x, -2, cuts_);
  const Tensor whole =
      ops_.JoinRows(parts, 2, ShapesOf(x), cuts_, DType::kBF16, {Layout::kBNHD, Layout::kBHND});
  ASSERT_TRUE(ops_.status().ok()) << ops_.status();
  EXPECT_EQ(whole[0].dtype, DType::kBF16);
  EXPECT_EQ(whole[0].layout, Layout::kBNHD);
  for (size_t p = 0; p < 2; ++p) ExpectNear(ReadView(whole[p]), x_[p].Read(), 1.0 / 256, 0);
  // Splitting launches nothing, joining launches once for the whole list; so do the gradients.
  EXPECT_EQ(device_.launches(), 1);
  const std::vector<Tensor> outputs = {whole}, asked = {x};
  const std::vector<Tensor> grads = {x};
  const Tensor back = tape_.Replay(ops_, outputs, grads, asked)[0];
  ASSERT_TRUE(ops_.status().ok()) << ops_.status();
  EXPECT_EQ(device_.launches(), 2);
  for (size_t p = 0; p < 2; ++p) EXPECT_EQ(ReadView(back[p]).values, x_[p].Read().values);
}

TEST_F(SplitRowsTest, ADimensionOfOneRepeats) {
  const std::vector<TestArray> one = {TestArray::Random(1, DType::kF32, {1, 2, 1, 3}), x_[1]};
  const Tensor parts = ops_.SplitRows(TensorOf(one), 2, cuts_);
  ASSERT_TRUE(ops_.status().ok()) << ops_.status();
  for (size_t s = 0; s < 3; ++s) EXPECT_EQ(ReadView(parts[s]).values, one[0].Read().values);
  EXPECT_EQ(parts[3].shape, x_[1].view().shape);
}

TEST_F(SplitRowsTest, CutsAreChecked) {
  for (const RowCuts& bad : std::vector<RowCuts>{
           {{0, 7}}, {{0, 3, 2, 7}, {0, 4}}, {{1, 7}, {0, 4}}, {{0, 6}, {0, 4}}, {{0}, {0, 4}}}) {
    Ops ops(stream_, nullptr);
    EXPECT_TRUE(ops.SplitRows(TensorOf(x_), 2, bad).empty());
    EXPECT_EQ(ops.status().code(), absl::StatusCode::kInternal);
  }
  Ops ops(stream_, nullptr);
  EXPECT_TRUE(ops.JoinRows(TensorOf(x_), 2, ShapesOf(TensorOf(x_)), cuts_).empty());
  EXPECT_EQ(ops.status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace attnd::testing
