// Primitives over elements, along an axis, over rows and of features on the CUDA device over arrays
// of which one dimension goes beyond 2^32 elements.
#include <gtest/gtest.h>

#include <vector>

#include "tests/cuda/far_strides.h"

// To the sanitizers such an array is 16 GiB of memory.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace attnd::testing {
namespace {

// Keeps the arrays of launches.
class Arrays {
 public:
  View In(const Shape& shape, DType dtype = DType::kF32, Memory memory = Memory::kDense,
          double low = -1, double high = 1) {
    const auto seed = static_cast<unsigned>(arrays_.size() + 1);
    arrays_.push_back(TestArray::Random(seed, dtype, shape, memory, low, high));
    return arrays_.back().view();
  }
  // Numbers from -1 to n - 1.
  View Index(const Shape& shape, int64_t n) {
    return In(shape, DType::kI32, Memory::kDense, -1, static_cast<double>(n));
  }
  // 1 in one of four places, else 0.
  View Some(const Shape& shape, Memory memory) {
    const View view = In(shape, DType::kF32, memory, 0, 4);
    PlainArray values = ReadView(view);
    for (double& x : values.values) x = x < 1 ? 1 : 0;
    WriteView(values, view);
    return view;
  }
  View Out(const Shape& shape, DType dtype = DType::kF32) {
    arrays_.emplace_back(dtype, shape);
    return arrays_.back().view();
  }

 private:
  std::vector<TestArray> arrays_;
};

TEST_F(FarStridesCuda, Elementwise) {
  Arrays arrays;
  const Shape shape = {2, 3, 40};
  const auto problem = [&](const View& b, DType out) {
    return ElementwiseProblem{arrays.In(shape), b, {}, arrays.Out(shape, out)};
  };
  ExpectSameBits(ElementwiseArgs{.op = ElementOp::kMultiply,
                                 .problems = {problem(arrays.In(shape), DType::kBF16)}},
                 3);
  // Of an operand that repeats.
  ExpectSameBits(ElementwiseArgs{.op = ElementOp::kSubtract,
                                 .problems = {problem(arrays.In({2, 1, 40}), DType::kF32)}},
                 3);
  ExpectSameBits(ElementwiseArgs{.op = ElementOp::kExp,
                                 .derivative = true,
                                 .problems = {problem(arrays.In(shape), DType::kF32)}},
                 3);
  // Tiles that an operand is turned in.
  const Shape turned = {2, 70, 40};
  const View across = arrays.In(turned, DType::kF16, Memory::kTransposed);
  ExpectSameBits(
      ElementwiseArgs{.op = ElementOp::kSelect,
                      .problems = {{arrays.In({2, 70, 1}, DType::kI32, Memory::kDense, 0, 2),
                                    across, arrays.In(turned), arrays.Out(turned)}}},
      3);
}

// Which elements are summed together depends on whether the axis is dense in memory: it stays what
// it is, whichever of the first `dimensions` is far.
struct Along {
  Shape shape;
  int axis;
  Memory memory;
  int dimensions;
};
// Lines side by side, then dense ones: whole, then cut.
const Along kAlong[] = {
    {{2, 3, 6}, 1, Memory::kDense, 3}, {{2, 3, 6}, 2, Memory::kTransposed, 3},
    {{1100, 3}, 0, Memory::kDense, 2}, {{2, 3, 20}, 2, Memory::kDense, 2},
    {{2, 8200}, 1, Memory::kDense, 1},
};

TEST_F(FarStridesCuda, Reduce) {
  for (const ReduceOp op :
       {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kLogSumExp, ReduceOp::kArgMaxSigned}) {
    for (const Along& along : kAlong) {
      Arrays arrays;
      Shape one = along.shape;
      one.dims[along.axis] = 1;
      const View x = arrays.In(along.shape, DType::kF32, along.memory);
      const View out = arrays.Out(one, IsArgMax(op) ? DType::kI32 : DType::kF32);
      ExpectSameBits(ReduceArgs{.op = op, .axis = along.axis, .problems = {{x, out}}},
                     along.dimensions);
    }
  }
}

TEST_F(FarStridesCuda, Softmax) {
  for (const Along& along : kAlong) {
    Arrays arrays;
    const View x = arrays.In(along.shape, DType::kF32, along.memory);
    ExpectSameBits(SoftmaxArgs{.axis = along.axis, .problems = {{x, arrays.Out(along.shape)}}},
                   along.dimensions);
  }
}

TEST_F(FarStridesCuda, Cumulative) {
  for (const Along& along : kAlong) {
    for (const CumulativeOp op : {CumulativeOp::kSum, CumulativeOp::kLogSumExp}) {
      Arrays arrays;
      const View x = arrays.In(along.shape, DType::kF32, along.memory);
      const View reset = arrays.Some(along.shape, along.memory);
      const bool is_sum = op == CumulativeOp::kSum;
      ExpectSameBits(
          CumulativeArgs{.op = op,
                         .axis = along.axis,
                         .reverse = !is_sum,
                         .problems = {{x, arrays.Out(along.shape), is_sum ? reset : View{}}}},
          along.dimensions);
    }
  }
}

TEST_F(FarStridesCuda, LayerNorm) {
  for (const Shape& shape : {Shape{2, 3, 20}, Shape{2, 1, 8200}}) {
    Arrays arrays;
    const Shape rows = {2, shape[1], 1};
    ExpectSameBits(
        LayerNormArgs{.problems = {{arrays.In(shape), arrays.Out(shape), arrays.Out(rows)}}}, 3);
    const View y = arrays.In(shape), rstd = arrays.In(rows), dy = arrays.In(shape);
    ExpectSameBits(LayerNormGradArgs{.problems = {{y, rstd, dy, arrays.Out(shape)}}}, 3,
                   /*dense=*/{0, 3});
  }
}

TEST_F(FarStridesCuda, Merge) {
  // More parts than a problem holds itself, and fewer.
  for (const int parts : {5, 2}) {
    for (const int64_t D : {20, 3}) {
      Arrays arrays;
      const Shape shape = {2, 3, D}, rows = {2, 3};
      MergeProblem forward;
      for (int i = 0; i < parts; ++i) forward.parts.push_back({arrays.In(shape), arrays.In(rows)});
      forward.out = arrays.Out(shape);
      forward.lse = arrays.Out(rows);
      ExpectSameBits(MergeArgs{.problems = {forward}}, 2);
      MergeGradProblem backward = {forward, arrays.In(shape), arrays.In(rows), {}};
      for (int i = 0; i < parts; ++i) {
        backward.dparts.push_back({arrays.Out(shape), arrays.Out(rows)});
      }
      ExpectSameBits(MergeGradArgs{.problems = {backward}}, 2);
    }
  }
}

TEST_F(FarStridesCuda, Pool) {
  struct Case {
    int64_t N, D;
  };
  // Ranges of some rows, and one that takes several launches.
  for (const Case& c : {Case{3, 3}, Case{600, 4}}) {
    Arrays arrays;
    const std::vector<RowRange> ranges = {{0, 2}, {1, c.N}, {c.N - 2, c.N}};
    const Shape shape = {2, c.N, c.D}, pooled = {2, 3, c.D};
    const View x = arrays.In(shape), rows = arrays.Index(shape, 3);
    const auto problem = [&](const View& arg) {
      return PoolProblem{x, arrays.Out(pooled), arg, ranges};
    };
    ExpectSameBits(PoolArgs{.op = PoolOp::kMean, .problems = {problem({})}}, 3);
    ExpectSameBits(
        PoolArgs{.op = PoolOp::kMax, .problems = {problem(arrays.Out(pooled, DType::kI32))}}, 3);
    ExpectSameBits(PoolArgs{.op = PoolOp::kSumWhere, .problems = {problem(rows)}}, 3);
  }
}

TEST_F(FarStridesCuda, DepthwiseConv) {
  for (const Shape& shape : {Shape{2, 3, 3, 3}, Shape{2, 3, 20, 8}}) {
    Arrays arrays;
    const Shape taps = {3, shape[2] == 3 ? 2 : 9};
    const View x = arrays.In(shape), weight = arrays.In(taps);
    for (const bool flipped : {false, true}) {
      ExpectSameBits(
          DepthwiseConvArgs{
              .left = 1, .flipped = flipped, .problems = {{x, weight, arrays.Out(shape)}}},
          3);
    }
    ExpectSameBits(
        DepthwiseConvGradArgs{.left = 1, .problems = {{x, arrays.In(shape), arrays.Out(taps)}}}, 3);
  }
}

TEST_F(FarStridesCuda, Gather) {
  for (const Shape& shape : {Shape{2, 3, 3, 3}, Shape{2, 3, 9, 20}}) {
    Arrays arrays;
    const int64_t N = shape[2], D = shape[3];
    const View x = arrays.In(shape), index = arrays.Index({2, 3, N}, N);
    // Bytes of rows, then elements that are converted, divided or looked up.
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      ExpectSameBits(GatherRowsArgs{.problems = {{x, index, arrays.Out(shape, dtype)}}}, 4);
    }
    const View divisor = arrays.In({2, 3, N}), columns = arrays.Index({2, 3, 3}, D);
    ExpectSameBits(GatherRowsArgs{.problems = {{x, index, arrays.Out(shape), {}, divisor}}}, 4);
    ExpectSameBits(GatherRowsArgs{.problems = {{x, index, arrays.Out({2, 3, N, 3}), columns}}}, 4);
  }
}

TEST_F(FarStridesCuda, Scatter) {
  Arrays arrays;
  for (const Shape& shape : {Shape{2, 3, 3, 3}, Shape{2, 3, 9, 20}}) {
    const int64_t M = shape[2], D = shape[3];
    const View x = arrays.In(shape), index = arrays.Index({2, 3, M}, 3);
    const View divisor = arrays.In({2, 3, 3}), columns = arrays.Index({2, 3, D}, 5);
    ExpectSameBits(ScatterRowsArgs{.problems = {{x, index, arrays.Out({2, 3, 3, D}), {}, divisor}}},
                   4);
    // Sums over a leading dimension.
    ExpectSameBits(ScatterRowsArgs{.problems = {{x, index, arrays.Out({1, 3, 3, D})}}}, 4);
    const auto pairs = [&] {
      return ScatterRowsArgs{.problems = {{x, index, arrays.Out({2, 3, 3, 5}), columns}}};
    };
    ExpectSameBits(pairs(), 3);
    ExpectSameBits(pairs(), 4, /*dense=*/{2});
  }
  // A row of many, whose sum goes on from launch to launch.
  const int64_t many = (int64_t{1} << 16) + 3;
  const View ones = arrays.In({2, many}, DType::kI32, Memory::kDense, 1, 2);
  ExpectSameBits(
      ScatterRowsArgs{.problems = {{arrays.In({2, many, 1}), ones, arrays.Out({2, 2, 1})}}}, 1);
}

TEST_F(FarStridesCuda, Sort) {
  // In one block, sorted or in ascending order, and in several passes; the first few of many.
  struct Case {
    int64_t N, M;
    bool by_index;
  };
  for (const Case& c : {Case{3, 3, false}, Case{3, 2, true}, Case{2100, 2100, false},
                        Case{2100, 90, false}, Case{2100, 90, true}}) {
    for (const DType dtype : {DType::kF32, DType::kI32}) {
      Arrays arrays;
      const View x = arrays.In({2, c.N}, dtype, Memory::kDense, -500, 500);
      ExpectSameBits(
          SortArgs{.by_index = c.by_index, .problems = {{x, arrays.Out({2, c.M}, DType::kI32)}}}, 2,
          /*dense=*/{1});
    }
  }
}

TEST_F(FarStridesCuda, Fft) {
  // One pass a side, a convolution, several passes.
  for (const Shape& shape : {Shape{2, 3, 3}, Shape{2, 53, 2}, Shape{2, 5000}}) {
    Arrays arrays;
    ExpectSameBits(FftArgs{.problems = {{arrays.In(shape), arrays.Out(shape)}}}, 3);
  }
}

TEST_F(FarStridesCuda, FeatureRows) {
  // Rows that threads hold, and longer ones.
  struct Case {
    int64_t nu, D;
  };
  for (const Case& c : {Case{0, 3}, Case{0, 4100}, Case{2, 3}, Case{2, 520}}) {
    for (const bool derivative : {false, true}) {
      Arrays arrays;
      const FeatureRows features = {
          .map = ElementOp::kEluPlusOne, .nu = c.nu, .norm = RowNorm::kL2, .eps = 0.1};
      const Shape x = {2, 3, c.D}, phi = {2, 3, features.Features(c.D)};
      ExpectSameBits(
          FeatureRowsArgs{.features = features,
                          .derivative = derivative,
                          .problems = {{arrays.In(x), derivative ? arrays.In(phi) : View{},
                                        arrays.Out(derivative ? x : phi)}}},
          3, /*dense=*/{2});
    }
  }
}

TEST_F(FarStridesCuda, RandomFeatures) {
  for (const RandomFeature feature :
       {RandomFeature::kExp, RandomFeature::kCosSin, RandomFeature::kMapped}) {
    for (const bool shares : {false, true}) {
      Arrays arrays;
      const RandomFeaturesParams params = {.feature = feature,
                                           .alpha = 0.5,
                                           .eps = HasWaves(feature) ? 0 : 0.01,
                                           .shares_shift = shares};
      const Shape rows = {2, 4, 3, 12}, phi = {2, 4, 3, FeatureCount(feature, 9)};
      RandomFeaturesProblem forward = {
          arrays.In(rows), arrays.In({1, 2, 9, 12}), arrays.Out(phi), {}};
      if (HasShift(feature)) forward.shift = arrays.Out({2, 4, shares ? 1 : 3, 1});
      ExpectSameBits(RandomFeaturesArgs{.params = params, .problems = {forward}}, 3,
                     /*dense=*/{2, 3});
      // With what the launch wrote.
      ExpectSameBits(
          RandomFeaturesGradArgs{.params = params,
                                 .problems = {{forward, arrays.In(phi), arrays.Out(rows)}}},
          3, /*dense=*/{2, 3});
    }
  }
}

}  // namespace
}  // namespace attnd::testing

#endif
