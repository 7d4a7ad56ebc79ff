// Views that show a whole tensor: their gradients take no memory, problem by problem, and plans
// still bound runs.
#include <gtest/gtest.h>

#include <functional>

#include "kernels/ops/ops.h"
#include "tests/plain/plain_device.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {
namespace {

using ViewOfX = std::function<Tensor(Ops&, const Tensor& x)>;

class WholeViews : public ::testing::Test {
 protected:
  struct Passed {
    std::vector<bool> problems;  // whether the gradient of x is that of the view
    int64_t peak = 0;
  };

  // The gradient of x, whose own numbers do not matter, from one of numbers for every element of
  // the view. `problem` is the problem of the view that problem 0, 1, .. of x would pass on.
  Passed GradientOf(const std::vector<Shape>& shapes, const ViewOfX& view,
                    const std::vector<size_t>& problem = {0, 1}) {
    std::vector<TestArray> arrays;
    for (const Shape& shape : shapes) arrays.push_back(TestArray::Random(1, DType::kF32, shape));
    std::vector<View> views;
    for (const TestArray& array : arrays) views.push_back(array.view());
    const Tensor x(std::move(views), std::vector<std::shared_ptr<Buffer>>(shapes.size()));
    Passed passed;
    for (Stream* stream : {&stream_, &dry_}) {
      Tape tape;
      Ops ops(*stream, &tape);
      tape.Watch(x);
      const Tensor y = view(ops, x), grad = ops.Copy(y);
      stream->workspace().Reset();
      const Tensor back = tape.Replay(ops, {&y, 1}, {&grad, 1}, {&x, 1})[0];
      EXPECT_TRUE(ops.status().ok()) << ops.status();
      if (stream == &dry_) {
        EXPECT_GE(stream->workspace().peak_bytes(), passed.peak);
        continue;
      }
      passed.peak = stream->workspace().peak_bytes();
      EXPECT_EQ(ShapesOf(back), shapes);
      for (size_t p = 0; p < shapes.size(); ++p) {
        passed.problems.push_back(back[p].data == grad[problem[p]].data);
        // The view's gradient is the view of the numbers: so is that of x.
        const PlainArray got = ReadView(back[p]), of_x = arrays[p].Read();
        for (size_t i = 0; i < got.values.size(); ++i) {
          EXPECT_TRUE(got.values[i] == of_x.values[i] || got.values[i] == 0);
        }
      }
    }
    return passed;
  }

  PlainDevice device_;
  BufferPool pool_{int64_t{1} << 20, /*poison=*/true};
  Stream stream_{device_, &pool_}, dry_{device_, nullptr};
};

TEST_F(WholeViews, ASlice) {
  const Passed mixed = GradientOf({{2, 40}, {2, 50}}, [](Ops& ops, const Tensor& x) {
    return ops.Slice(x, 1, {0, 3}, {40, 45});
  });
  EXPECT_EQ(mixed.problems, (std::vector{true, false}));
  const Passed whole = GradientOf({{2, 40}, {2, 50}}, [](Ops& ops, const Tensor& x) {
    return ops.Slice(x, 1, {0}, {40, 50});
  });
  EXPECT_EQ(whole.problems, (std::vector{true, true}));
  EXPECT_EQ(whole.peak, 0);
  // Every second element of one is all of them.
  const Passed one =
      GradientOf({{3, 1}}, [](Ops& ops, const Tensor& x) { return ops.Slice(x, 1, {0}, {1}, 2); });
  EXPECT_EQ(one.problems, (std::vector{true}));
}

TEST_F(WholeViews, WindowsSideBySide) {
  const Passed passed = GradientOf({{1, 12, 3}, {1, 13, 3}}, [](Ops& ops, const Tensor& x) {
    return ops.Unfold(x, {3}, 4, 4, 1);
  });
  EXPECT_EQ(passed.problems, (std::vector{true, false}));
}

TEST_F(WholeViews, SequencesOfFullLength) {
  const Passed passed = GradientOf({{2, 1, 5, 2}, {2, 1, 5, 2}},
                                   [](Ops& ops, const Tensor& x) {
                                     return ops.SplitBatch(x, {{5, 5}, {5, 4}});
                                   },
                                   {0, 2});
  EXPECT_EQ(passed.problems, (std::vector{false, false}));
  const Passed joint = GradientOf({{2, 1, 5, 2}, {2, 1, 5, 2}},
                                  [](Ops& ops, const Tensor& x) {
                                    return ops.SplitBatch(x, {{5}, {5, 4}}, {{2}, {1, 1}});
                                  },
                                  {0, 1});
  EXPECT_EQ(joint.problems, (std::vector{true, false}));
}

TEST_F(WholeViews, OneSegment) {
  const Passed passed = GradientOf({{1, 2, 7, 3}, {1, 2, 7, 3}}, [](Ops& ops, const Tensor& x) {
    return ops.SplitRows(x, 2, {{0, 7}, {0, 4, 7}});
  });
  EXPECT_EQ(passed.problems, (std::vector{true, false}));
}

TEST_F(WholeViews, PartsBesideNothing) {
  const std::vector<TestArray> arrays = {TestArray::Random(1, DType::kF32, {2, 3}),
                                         TestArray::Random(2, DType::kF32, {2, 3})};
  const Tensor x({arrays[0].view(), arrays[1].view()}, std::vector<std::shared_ptr<Buffer>>(2));
  Ops ops(stream_, nullptr);
  const Tensor y = ops.Concat({x, ops.Constant(7, {{2, 0}, {2, 1}})}, 1);
  ASSERT_TRUE(ops.status().ok()) << ops.status();
  EXPECT_EQ(y[0].data, x[0].data);
  EXPECT_EQ(y[1].shape, (Shape{2, 4}));
  EXPECT_EQ(ReadView(y[1]).At({1, 3}), 7);
  // Halves become float32.
  EXPECT_EQ(ops.Concat({ops.Copy(x, DType::kF16)}, 1)[0].dtype, DType::kF32);
}

// Of many lengths some are rounded up, perhaps to the whole tensor.
TEST_F(WholeViews, APlanOfRoundedLengthsBoundsARunThatCopies) {
  const TestArray array = TestArray::Random(1, DType::kF32, {3, 1, 50, 2});
  int64_t peaks[2] = {};
  for (Stream* stream : {&stream_, &dry_}) {
    const Tensor x({array.view()}, std::vector<std::shared_ptr<Buffer>>(1));
    Tape tape;
    Ops ops(*stream, &tape);
    tape.Watch(x);
    stream->workspace().Reset();
    const Tensor y = ops.Copy(stream->is_dry() ? ops.SplitBatch(x, {{50, 50}}, {{2, 1}})
                                               : ops.SplitBatch(x, {{50, 49, 48}}));
    static_cast<void>(tape.Replay(ops, {&y, 1}, {&y, 1}, {&x, 1}));
    EXPECT_TRUE(ops.status().ok()) << ops.status();
    peaks[stream->is_dry() ? 1 : 0] = stream->workspace().peak_bytes();
  }
  EXPECT_GE(peaks[1], peaks[0]);
}

}  // namespace
}  // namespace attnd::testing
