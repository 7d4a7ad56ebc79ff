// Views of ragged tensors: which elements they refer to, and how gradients pass back through them.
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "kernels/ops/ops.h"
#include "tests/plain/plain_device.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {
namespace {

class Views : public ::testing::Test {
 protected:
  Views() : stream_(device_, &pool_), ops_(stream_, &tape_) {}

  // Problems of these shapes that hold 0, 1, 2, .. in row-major order; every second one transposed
  // in memory.
  Tensor Counting(const std::vector<Shape>& shapes) {
    std::vector<View> views;
    double next = 0;
    for (size_t p = 0; p < shapes.size(); ++p) {
      const Memory memory = p % 2 == 0 ? Memory::kDense : Memory::kTransposed;
      arrays_.emplace_back(DType::kF32, shapes[p], memory);
      PlainArray values(shapes[p]);
      for (double& x : values.values) x = next++;
      arrays_.back().Write(values);
      views.push_back(arrays_.back().view());
    }
    return Tensor(std::move(views), std::vector<std::shared_ptr<Buffer>>(shapes.size()));
  }

  static std::vector<double> Elements(const Tensor& x, size_t problem) {
    return ReadView(x[problem]).values;
  }

  // A view is linear: <view(x), g> = <x, gradient(g)> for every g.
  void ExpectAdjoint(const std::vector<Shape>& shapes,
                     const std::function<Tensor(const Tensor&)>& view) {
    const Tensor x = Counting(shapes);
    tape_.Watch(x);
    const Tensor y = view(x);
    ASSERT_TRUE(ops_.status().ok()) << ops_.status().message();
    std::mt19937 random(1);
    std::uniform_int_distribution<int> digit(-4, 4);
    std::vector<std::vector<float>> g(y.size());
    double left = 0, right = 0;
    for (size_t p = 0; p < y.size(); ++p) {
      for (double value : Elements(y, p)) {
        g[p].push_back(static_cast<float>(digit(random)));
        left += value * g[p].back();
      }
    }
    const Tensor grad = ops_.FromHost(ShapesOf(y), g);
    const std::vector<Tensor> back = tape_.Replay(ops_, {&y, 1}, {&grad, 1}, {&x, 1});
    ASSERT_TRUE(ops_.status().ok()) << ops_.status().message();
    ASSERT_EQ(ShapesOf(back[0]), shapes);
    for (size_t p = 0; p < shapes.size(); ++p) {
      const std::vector<double> values = Elements(x, p), grads = Elements(back[0], p);
      for (size_t i = 0; i < values.size(); ++i) right += values[i] * grads[i];
    }
    EXPECT_EQ(left, right);
  }

  PlainDevice device_;
  BufferPool pool_;
  Stream stream_;
  Tape tape_;
  Ops ops_;
  std::vector<TestArray> arrays_;
};

TEST_F(Views, ReshapeKeepsRowMajorOrderWhateverTheStrides) {
  const Tensor x = Counting({{2, 6}, {3, 4}});
  const Tensor y = ops_.Reshape(x, {{3, 1, 4}, {2, 6}});
  EXPECT_EQ(Elements(y, 0), (std::vector<double>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(Elements(y, 1), (std::vector<double>{12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23}));
}

TEST_F(Views, ReshapeOfDenseTensorsCopiesNothing) {
  const Tensor x = Counting({{2, 3, 4, 5}});
  EXPECT_EQ(ops_.Reshape(x, {{6, 20}})[0].data, x[0].data);
  EXPECT_EQ(ops_.Reshape(x, {{2, 3, 2, 2, 5}})[0].data, x[0].data);
  // [B,H,N,D] to [B,N,H D] needs a copy after the transposition; splitting an axis does not.
  const Tensor swapped = ops_.Transpose(x, 1, 2);
  EXPECT_NE(ops_.Reshape(swapped, {{2, 4, 15}})[0].data, x[0].data);
  EXPECT_EQ(ops_.Reshape(swapped, {{2, 2, 2, 3, 5}})[0].data, x[0].data);
  EXPECT_EQ(device_.calls().other, 1);
}

TEST_F(Views, SlicesStepAndArePerProblem) {
  const Tensor x = Counting({{2, 5}, {2, 4}});
  const Tensor y = ops_.Slice(x, -1, {1, 0}, {5, 3}, 2);
  EXPECT_EQ(Elements(y, 0), (std::vector<double>{1, 3, 6, 8}));
  EXPECT_EQ(Elements(y, 1), (std::vector<double>{10, 12, 14, 16}));
  EXPECT_EQ(ops_.Slice(x, 1, {2}, {2})[0].shape, (Shape{2, 0}));
}

TEST_F(Views, UnfoldShowsEveryWindow) {
  const Tensor x = Counting({{1, 7, 1}});
  const Tensor y = ops_.Unfold(x, {2}, /*width=*/3, /*stride=*/2, /*dilation=*/2);
  EXPECT_EQ(y[0].shape, (Shape{1, 2, 3, 1}));
  EXPECT_EQ(Elements(y, 0), (std::vector<double>{0, 2, 4, 2, 4, 6}));
}

TEST_F(Views, ABatchSplitsIntoProblemsAndJoinsAgain) {
  const Tensor x = Counting({{2, 1, 3, 2}, {1, 1, 2, 2}});
  const Tensor rows = ops_.SplitBatch(x, {{3, 1}, {0}});
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[1].shape, (Shape{1, 1, 1, 2}));
  EXPECT_EQ(Elements(rows, 1), (std::vector<double>{6, 7}));
  EXPECT_EQ(rows[2].shape, (Shape{1, 1, 0, 2}));
  const Tensor joined = ops_.JoinBatch(rows, ShapesOf(x), /*fill=*/-1);
  EXPECT_EQ(Elements(joined, 0), (std::vector<double>{0, 1, 2, 3, 4, 5, 6, 7, -1, -1, -1, -1}));
  EXPECT_EQ(Elements(joined, 1), (std::vector<double>{-1, -1, -1, -1}));
}

TEST_F(Views, ConcatPutsPartsSideBySide) {
  const Tensor a = Counting({{1, 2}, {2, 1}}), b = Counting({{1, 1}, {2, 0}});
  const Tensor y = ops_.Concat({a, b, a}, 1);
  EXPECT_EQ(Elements(y, 0), (std::vector<double>{0, 1, 0, 0, 1}));
  EXPECT_EQ(Elements(y, 1), (std::vector<double>{2, 2, 3, 3}));
}

TEST_F(Views, AConstantTakesNoMemory) {
  const int64_t before = stream_.workspace().current_bytes();
  const Tensor y = ops_.Constant(2.5f, {{100, 100}, {3}});
  EXPECT_LE(stream_.workspace().current_bytes() - before, 72);  // of one number, as a share
  EXPECT_EQ(Elements(y, 1), (std::vector<double>{2.5, 2.5, 2.5}));
}

TEST_F(Views, StopLetsNoGradientThrough) {
  const Tensor x = Counting({{2}});
  tape_.Watch(x);
  const Tensor y = ops_.Stop(x);
  EXPECT_FALSE(tape_.IsWatched(y));
  EXPECT_EQ(Elements(y, 0), Elements(x, 0));
}

TEST_F(Views, InvalidShapesAreRefusedAndTheErrorIsKept) {
  const Tensor x = Counting({{2, 3}});
  EXPECT_TRUE(ops_.Reshape(x, {{7}}).empty());
  EXPECT_EQ(ops_.status().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(ops_.Transpose(x, 0, 1).empty());
}

TEST_F(Views, SlicesBeyondTheSizeOrBackwardsAreRefused) {
  const Tensor x = Counting({{2, 3}, {2, 4}});
  const auto is_refused = [&](std::vector<int64_t> begin, std::vector<int64_t> end, int64_t step) {
    Ops ops(stream_, nullptr);
    const bool is_empty = ops.Slice(x, 1, begin, end, step).empty();
    EXPECT_EQ(ops.status().ok(), !is_empty);
    return is_empty;
  };
  EXPECT_FALSE(is_refused({0}, {3, 4}, 1));
  EXPECT_FALSE(is_refused({3}, {3}, 1));
  EXPECT_TRUE(is_refused({0}, {4}, 1));
  EXPECT_TRUE(is_refused({-1}, {3}, 1));
  EXPECT_TRUE(is_refused({0, 3}, {3, 2}, 1));
  EXPECT_TRUE(is_refused({0}, {3}, 0));
  EXPECT_TRUE(is_refused({0, 0, 0}, {3}, 1));
}

TEST_F(Views, GradientOfReshape) {
  ExpectAdjoint({{2, 6}, {4, 3}}, [&](const Tensor& x) {
    return ops_.Reshape(x, {{3, 4}, {2, 2, 3}});
  });
}
TEST_F(Views, GradientOfTranspose) {
  ExpectAdjoint({{2, 3, 4}}, [&](const Tensor& x) { return ops_.Transpose(x, 0, -1); });
}
TEST_F(Views, GradientOfSlice) {
  ExpectAdjoint({{2, 7}, {3, 5}}, [&](const Tensor& x) {
    return ops_.Slice(x, 1, {1, 0}, {6, 5}, 2);
  });
}
TEST_F(Views, GradientOfUnfoldAddsOverlaps) {
  ExpectAdjoint({{2, 9, 3}, {1, 6, 3}}, [&](const Tensor& x) {
    return ops_.Unfold(x, {3, 1}, 4, 2, 1);
  });
}
TEST_F(Views, GradientOfUnfoldWithDilation) {
  ExpectAdjoint({{1, 9, 2}}, [&](const Tensor& x) { return ops_.Unfold(x, {3}, 3, 1, 3); });
}
TEST_F(Views, GradientOfSplitAndJoin) {
  ExpectAdjoint({{2, 1, 5, 2}}, [&](const Tensor& x) { return ops_.SplitBatch(x, {{4, 2}}); });
}
TEST_F(Views, GradientOfConcat) {
  ExpectAdjoint({{2, 3}, {1, 2}}, [&](const Tensor& x) {
    const Tensor part = ops_.Slice(x, 1, {0}, {1, 2});
    return ops_.Concat({x, part, x}, 1);
  });
}

}  // namespace
}  // namespace attnd::testing
