// Lists in Ops: what is read back, what is refused, cuts whose entries stand for several segments.
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

class OpsListsTest : public ::testing::Test {
 protected:
  PlainDevice device_;
  BufferPool pool_{int64_t{1} << 20, /*poison=*/true};
  Stream stream_{device_, &pool_}, dry_{device_, nullptr};
  Tape tape_;
};

TEST_F(OpsListsTest, OnlyDimensionsOfOneRepeat) {
  const std::vector<TestArray> x = {TestArray::Random(1, DType::kF32, {1, 3})};
  {
    Ops ops(stream_, nullptr);
    EXPECT_EQ(ShapesOf(ops.Expand(TensorOf(x), {{4, 3}})), (std::vector<Shape>{{4, 3}}));
    EXPECT_TRUE(ops.status().ok()) << ops.status();
  }
  for (const Shape& bad : {Shape{1, 4}, Shape{1, 6}, Shape{1, 1, 3}}) {
    Ops ops(stream_, nullptr);
    EXPECT_TRUE(ops.Expand(TensorOf(x), {bad}).empty());
    EXPECT_EQ(ops.status().code(), absl::StatusCode::kInternal);
  }
}

TEST_F(OpsListsTest, SoftmaxRequiresFloatsAndAnAxis) {
  const std::vector<TestArray> x = {TestArray::Random(1, DType::kF32, {2, 3})};
  const std::vector<TestArray> integers = {TestArray(DType::kI32, {2, 3})};
  for (const auto& [bad, axis] : {std::pair{&x, 2}, {&x, -3}, {&integers, 1}}) {
    Ops ops(stream_, nullptr);
    EXPECT_TRUE(ops.Softmax(TensorOf(*bad), axis).empty()) << axis;
    EXPECT_EQ(ops.status().code(), absl::StatusCode::kInternal) << axis;
  }
}

TEST_F(OpsListsTest, ABatchOfRankTwoIsCutAlongItsRows) {
  const std::vector<TestArray> x = {TestArray::Random(1, DType::kF32, {2, 5})};
  Ops ops(stream_, nullptr);
  const Tensor rows = ops.SplitBatch(TensorOf(x), {{4, 2}});
  ASSERT_TRUE(ops.status().ok()) << ops.status();
  EXPECT_EQ(ShapesOf(rows), (std::vector<Shape>{{1, 4}, {1, 2}}));
  EXPECT_EQ(ReadView(rows[1]).At({0, 1}), x[0].Read().At({1, 1}));
}

// Seven segments of three lengths, each length one problem with that many sequences.
TEST_F(OpsListsTest, SegmentsThatAreAlikeJoinAgainOnADryStream) {
  const std::vector<TestArray> x = {TestArray(DType::kF32, {1, 2, 17, 3})};
  const RowCuts cuts = {{0, 3, 15, 17}};
  const SeqCounts counts = {{1, 4, 2}};
  Ops ops(dry_, nullptr);
  const Tensor parts = ops.SplitRows(TensorOf(x), 2, cuts, counts);
  ASSERT_TRUE(ops.status().ok()) << ops.status();
  EXPECT_EQ(ShapesOf(parts), (std::vector<Shape>{{1, 2, 3, 3}, {4, 2, 3, 3}, {2, 2, 1, 3}}));
  const Tensor whole = ops.JoinRows(parts, 2, {{1, 2, 17, 3}}, cuts, DType::kF32, {}, counts);
  EXPECT_TRUE(ops.status().ok()) << ops.status();
  EXPECT_EQ(ShapesOf(whole), (std::vector<Shape>{{1, 2, 17, 3}}));
}

TEST_F(OpsListsTest, TheGradientOfARepeatedRowIsPlannedOverSegmentsThatAreAlike) {
  const std::vector<TestArray> one = {TestArray(DType::kF32, {1, 2, 1, 3})};
  Ops ops(dry_, &tape_);
  const Tensor x = TensorOf(one);
  tape_.Watch(x);
  const std::vector<Tensor> parts = {ops.SplitRows(x, 2, {{0, 3, 15, 17}}, {{1, 4, 2}})};
  ASSERT_TRUE(ops.status().ok()) << ops.status();
  ASSERT_EQ(ShapesOf(parts[0]), (std::vector<Shape>{{1, 2, 1, 3}, {4, 2, 1, 3}, {2, 2, 1, 3}}));
  const std::vector<Tensor> asked = {x};
  const std::vector<Tensor> back = tape_.Replay(ops, parts, parts, asked);
  ASSERT_TRUE(ops.status().ok()) << ops.status();
  EXPECT_EQ(ShapesOf(back[0]), ShapesOf(x));
}

// Each problem of a run is rounded up to a size class on its own, which the plan must cover.
TEST_F(OpsListsTest, ThePlanOfSegmentsThatAreAlikeBoundsTheRun) {
  for (const int64_t rows : {1, 3, 65}) {
    const std::vector<TestArray> x = {TestArray::Random(1, DType::kF32, {1, 2, 5 * rows, 13})};
    Ops planned(dry_, nullptr), ran(stream_, nullptr);
    const RowCuts all = {{0, 5 * rows}};
    const RowCuts each = {{0, rows, 2 * rows, 3 * rows, 4 * rows, 5 * rows}};
    dry_.workspace().Reset();
    stream_.workspace().Reset();
    const Tensor plan = planned.Copy(planned.SplitRows(TensorOf(x), 2, all, {{5}}));
    const Tensor copies = ran.Copy(ran.SplitRows(TensorOf(x), 2, each));
    ASSERT_TRUE(planned.status().ok() && ran.status().ok());
    ASSERT_EQ(copies.size(), 5u);
    EXPECT_GE(dry_.workspace().peak_bytes(), stream_.workspace().peak_bytes()) << rows;
    EXPECT_GT(stream_.workspace().peak_bytes(), 0);
  }
}

}  // namespace
}  // namespace attnd::testing
