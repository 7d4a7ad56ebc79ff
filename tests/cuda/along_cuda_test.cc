// elementwise and the primitives along an axis on the CUDA device: thread orders, lists, alignment,
// and the sizes at which kernels change what they do.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "tests/cuda/thread_orders.h"
#include "tests/plain/plain.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {
namespace {

Device& Cuda() { return CpuOf("cuda", 1); }

void RunLaunch(const Launch& launch) {
  RunOn(Cuda(), [&](Stream& stream) { return Cuda().Run(stream, launch); });
}

// Runs `launch` in every order, and each of its problems alone; `outputs` must hold the same bits.
template <class Args>
void ExpectOneResult(const Args& args, const std::vector<TestArray>& outputs) {
  const auto bits = [&] {
    std::vector<std::vector<std::byte>> all;
    for (const TestArray& array : outputs) {
      all.push_back(array.Bytes());
      EXPECT_TRUE(array.GuardsIntact());
      TestArray(array).Write(PlainArray(array.view().shape, 7));
    }
    return all;
  };
  RunLaunch(args);
  const auto expected = bits();
  ForEachThreadOrder([&](const std::string& order) {
    RunLaunch(args);
    EXPECT_TRUE(bits() == expected) << order;
  });
  for (const auto& problem : args.problems) {
    Args one = args;
    one.problems = {problem};
    RunLaunch(one);
  }
  EXPECT_TRUE(bits() == expected) << "alone";
}

// Lengths around those at which teams grow, and lines are cut; the second axis is `n`.
const int64_t kLengths[] = {0, 1, 3, 4, 5, 63, 128, 129, 255, 257, 1024, 1025, 8192, 8195, 16385};

struct Lists {
  std::vector<TestArray> x, outputs;
  View Out(DType dtype, const Shape& shape, Memory memory = Memory::kDense) {
    outputs.emplace_back(dtype, shape, memory);
    return outputs.back().view();
  }
};

// One problem of each length; f(x, problem number) makes it.
template <class Args, class F>
void ExpectOneResultAlong(Args args, bool is_dense, const F& f) {
  Lists lists;
  unsigned seed = 0;
  for (int64_t n : kLengths) {
    const DType dtypes[] = {DType::kF32, DType::kF16, DType::kBF16};
    const Shape shape = is_dense ? Shape{3, n} : Shape{n, 3};
    const Memory memory = seed % 2 == 0 ? Memory::kDense : Memory::kPitched;
    seed += 1;
    lists.x.push_back(TestArray::Random(seed, dtypes[seed % 3], shape, memory, -3, 3));
    args.problems.push_back(f(lists, lists.x.back()));
  }
  ExpectOneResult(args, lists.outputs);
}

TEST(AlongOnCuda, ReduceHasOneResult) {
  for (ReduceOp op : {ReduceOp::kMean, ReduceOp::kMax, ReduceOp::kLogSumExp, ReduceOp::kArgMax,
                      ReduceOp::kArgMaxSigned}) {
    for (bool is_dense : {false, true}) {
      const int axis = is_dense ? 1 : 0;
      ExpectOneResultAlong(ReduceArgs{.op = op, .axis = axis}, is_dense,
                           [&](Lists& lists, const TestArray& x) {
                             Shape shape = x.view().shape;
                             shape.dims[axis] = 1;
                             const DType dtype = IsArgMax(op) ? DType::kI32 : DType::kF32;
                             return ReduceProblem{x.view(), lists.Out(dtype, shape)};
                           });
    }
  }
}

TEST(AlongOnCuda, SoftmaxHasOneResult) {
  for (bool log : {false, true}) {
    for (bool is_dense : {false, true}) {
      ExpectOneResultAlong(SoftmaxArgs{.log = log, .axis = is_dense ? 1 : 0}, is_dense,
                           [&](Lists& lists, const TestArray& x) {
                             return SoftmaxProblem{x.view(),
                                                   lists.Out(log ? DType::kBF16 : DType::kF32,
                                                             x.view().shape, Memory::kTransposed)};
                           });
    }
  }
}

TEST(AlongOnCuda, CumulativeHasOneResult) {
  for (CumulativeOp op : {CumulativeOp::kSum, CumulativeOp::kMax, CumulativeOp::kLogSumExp}) {
    for (bool is_dense : {false, true}) {
      const CumulativeArgs args = {
          .op = op, .axis = is_dense ? 1 : 0, .exclusive = is_dense, .reverse = !is_dense};
      ExpectOneResultAlong(args, is_dense, [&](Lists& lists, const TestArray& x) {
        return CumulativeProblem{x.view(), lists.Out(DType::kF32, x.view().shape), {}};
      });
    }
  }
}

TEST(AlongOnCuda, LayerNormHasOneResult) {
  ExpectOneResultAlong(LayerNormArgs{}, true, [&](Lists& lists, const TestArray& x) {
    return LayerNormProblem{x.view(), lists.Out(DType::kF32, x.view().shape),
                            lists.Out(DType::kF32, Shape{3, 1})};
  });
  std::vector<TestArray> more;
  ExpectOneResultAlong(LayerNormGradArgs{}, true, [&](Lists& lists, const TestArray& dy) {
    more.push_back(TestArray::Random(1, DType::kF32, dy.view().shape));
    const View y = more.back().view();
    more.push_back(TestArray::Random(2, DType::kF32, Shape{3, 1}, Memory::kDense, 0.5, 2));
    return LayerNormGradProblem{y, more.back().view(), dy.view(),
                                lists.Out(DType::kF32, dy.view().shape)};
  });
}

TEST(AlongOnCuda, LayerNormOfEveryLengthAndMemory) {
  unsigned seed = 0;
  for (int64_t n : {1, 3, 4, 63, 257, 1025, 8195}) {
    for (Memory memory : {Memory::kDense, Memory::kPitched, Memory::kTransposed}) {
      const DType dtypes[] = {DType::kF32, DType::kF16, DType::kBF16};
      const DType dtype = dtypes[++seed % 3];
      const Shape shape = {1, 2, n}, rows = {1, 2, 1};
      // A mean far from 0.
      const TestArray x = TestArray::Random(seed, dtype, shape, memory, 99, 101);
      const TestArray dy = TestArray::Random(seed + 1, dtype, shape, memory);
      const TestArray y(DType::kF32, shape, memory), rstd(DType::kF32, rows);
      const TestArray plain_y(DType::kF32, shape), plain_rstd(DType::kF32, rows);
      LayerNormArgs args = {.problems = {{x.view(), y.view(), rstd.view()}}};
      RunLaunch(args);
      args.problems = {{x.view(), plain_y.view(), plain_rstd.view()}};
      PlainRun(args);
      ExpectNear(y.Read(), plain_y.Read(), 2e-7, 1e-7);
      ExpectNear(rstd.Read(), plain_rstd.Read(), 2e-7, 0);
      EXPECT_TRUE(y.GuardsIntact() && rstd.GuardsIntact());

      const TestArray dx(DType::kF32, shape), plain_dx(DType::kF32, shape);
      LayerNormGradArgs grad = {
          .problems = {{plain_y.view(), plain_rstd.view(), dy.view(), dx.view()}}};
      RunLaunch(grad);
      grad.problems[0].dx = plain_dx.view();
      PlainRun(grad);
      double largest = 0;
      for (double r : plain_rstd.Read().values) largest = std::max(largest, r);
      ExpectNear(dx.Read(), plain_dx.Read(), 3e-7, 5e-7 * largest);
      EXPECT_TRUE(dx.GuardsIntact());
    }
  }
}

TEST(AlongOnCuda, SumsThatBeginAnewInLongDenseLines) {
  const Shape shape = {2, 17001};
  const TestArray x = TestArray::Random(1, DType::kBF16, shape);
  TestArray reset(DType::kF32, shape);
  PlainArray resets(shape);
  for (size_t i = 0; i < resets.values.size(); ++i) resets.values[i] = i % 5003 == 40 ? 1 : 0;
  reset.Write(resets);
  for (int way = 0; way < 4; ++way) {
    const TestArray ours(DType::kF32, shape), plain(DType::kF32, shape);
    CumulativeArgs args = {.axis = 1, .exclusive = way % 2 != 0, .reverse = way / 2 != 0};
    args.problems = {{x.view(), ours.view(), reset.view()}};
    RunLaunch(args);
    args.problems = {{x.view(), plain.view(), reset.view()}};
    PlainRun(args);
    ExpectNear(ours.Read(), plain.Read(), 1.3e-7, 1e-9);
  }
}

// Views that begin one element after an aligned address, in one stretch of memory with those that
// do not: bits are the same.
TEST(AlongOnCuda, AlignmentChangesNoBit) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (int64_t n : {64, 1000, 9000}) {
      const TestArray wide = TestArray::Random(3, dtype, Shape{4, n + 4});
      const TestArray near(dtype, Shape{4, n});
      View odd = wide.view();
      odd.data = odd.As<char>() + SizeOf(dtype);
      odd.shape.dims[1] = n;
      PlainArray values(near.view().shape), all = wide.Read();
      ForEachIndex(values.shape, [&](const std::vector<int64_t>& i) {
        values.At(i) = all.At({i[0], i[1] + 1});
      });
      TestArray(near).Write(values);
      // The first problem makes the whole array one stretch of device memory.
      const TestArray whole(DType::kF32, Shape{4, n + 4});
      const auto expect = [&](const auto& launch) {
        const TestArray apart(DType::kF32, near.view().shape),
            ours(DType::kF32, apart.view().shape);
        RunLaunch(launch(near.view(), apart.view()));
        RunLaunch(launch(odd, ours.view()));
        EXPECT_EQ(ours.Bytes(), apart.Bytes());
      };
      expect([&](const View& x, const View& out) {
        return ElementwiseArgs{
            .op = ElementOp::kSigmoid,
            .problems = {{.a = wide.view(), .out = whole.view()}, {.a = x, .out = out}}};
      });
      expect([&](const View& x, const View& out) {
        return SoftmaxArgs{.axis = 1, .problems = {{wide.view(), whole.view()}, {x, out}}};
      });
      expect([&](const View& x, const View& out) {
        return CumulativeArgs{.axis = 1,
                              .problems = {{wide.view(), whole.view(), {}}, {x, out, {}}}};
      });
      const TestArray rstd(DType::kF32, Shape{4, 1}), other(DType::kF32, Shape{4, 1});
      expect([&](const View& x, const View& out) {
        return LayerNormArgs{
            .problems = {{wide.view(), whole.view(), rstd.view()}, {x, out, other.view()}}};
      });
    }
  }
}

TEST(ElementwiseOnCuda, HasOneResult) {
  Lists lists;
  ElementwiseArgs args = {.op = ElementOp::kLogAddExp};
  unsigned seed = 0;
  for (const Shape& shape : {Shape{0}, Shape{1}, Shape{5000}, Shape{3, 65, 64}, Shape{65, 63}}) {
    for (Memory memory : {Memory::kDense, Memory::kPitched, Memory::kTransposed}) {
      lists.x.push_back(TestArray::Random(++seed, DType::kF32, shape, memory));
      const View a = lists.x.back().view();
      lists.x.push_back(TestArray::Random(++seed, DType::kBF16, shape));
      const View b = lists.x.back().view();
      args.problems.push_back({.a = a, .b = b, .out = lists.Out(DType::kF32, shape)});
      args.problems.push_back({.a = a, .b = b, .out = lists.Out(DType::kF16, shape, memory)});
    }
  }
  ExpectOneResult(args, lists.outputs);
}

// A part of a launch that is cut into slices is what it is alone.
TEST(ElementwiseOnCuda, SlicesChangeNoBit) {
  const Shape shape = {1 << 20};
  const TestArray x = TestArray::Random(1, DType::kF32, shape);
  const TestArray all(DType::kF32, shape), part(DType::kF32, Shape{5000});
  RunLaunch(
      ElementwiseArgs{.op = ElementOp::kGelu, .problems = {{.a = x.view(), .out = all.view()}}});
  constexpr int64_t kFirst = 777777;
  View middle = x.view();
  middle.data = middle.As<float>() + kFirst;
  middle.shape = part.view().shape;
  RunLaunch(
      ElementwiseArgs{.op = ElementOp::kGelu, .problems = {{.a = middle, .out = part.view()}}});
  const std::vector<std::byte> bytes = all.Bytes();
  EXPECT_TRUE(std::equal(bytes.begin() + kFirst * 4, bytes.begin() + (kFirst + 5000) * 4,
                         part.Bytes().begin()));
}

}  // namespace
}  // namespace attnd::testing
