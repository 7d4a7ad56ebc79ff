// Primitives over rows on the CUDA device: the bits depend on no order of threads and on no list.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "tests/cuda/thread_orders.h"
#include "tests/plain/plain.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
constexpr Memory kMemories[] = {Memory::kDense, Memory::kPitched, Memory::kTransposed};

Device& Cuda() { return CpuOf("cuda", 1); }

void RunLaunch(const Launch& launch) {
  RunOn(Cuda(), [&](Stream& stream) { return Cuda().Run(stream, launch); });
}

// A launch of several problems, and what it writes.
struct Launched {
  std::vector<TestArray> inputs, outputs;
  std::function<Launch(size_t first, size_t count)> launch;  // of some of its problems
  size_t problems = 1;

  View In(const TestArray& array) {
    inputs.push_back(array);
    return array.view();
  }
  View In(DType dtype, const Shape& shape, Memory memory = Memory::kDense, double low = -1,
          double high = 1) {
    return In(TestArray::Random(static_cast<unsigned>(inputs.size() + 1), dtype, shape, memory, low,
                                high));
  }
  View Out(DType dtype, const Shape& shape, Memory memory = Memory::kDense) {
    outputs.emplace_back(dtype, shape, memory);
    return outputs.back().view();
  }
  std::vector<std::vector<std::byte>> Bytes() const {
    std::vector<std::vector<std::byte>> bytes;
    for (const TestArray& array : outputs) bytes.push_back(array.Bytes());
    return bytes;
  }
};

template <class Args>
void SetProblems(Launched* launched, const Args& args) {
  launched->problems = args.problems.size();
  launched->launch = [args](size_t first, size_t count) {
    Args some = args;
    const auto begin = args.problems.begin() + static_cast<std::ptrdiff_t>(first);
    some.problems = {begin, begin + static_cast<std::ptrdiff_t>(count)};
    return Launch(some);
  };
}

// The bits are the same in every order, and of each problem alone.
void ExpectOneResult(Launched launched) {
  RunLaunch(launched.launch(0, launched.problems));
  const auto expected = launched.Bytes();
  const auto expect = [&](const std::string& how) {
    EXPECT_TRUE(launched.Bytes() == expected) << how;
    for (const TestArray& array : launched.outputs) {
      EXPECT_TRUE(array.GuardsIntact()) << how;
      // The guards are not written.
      TestArray(array).Write(PlainArray(array.view().shape, 7));
    }
  };
  ForEachThreadOrder([&](const std::string& order) {
    RunLaunch(launched.launch(0, launched.problems));
    expect(order);
  });
  for (size_t i = 0; i < launched.problems; ++i) RunLaunch(launched.launch(i, 1));
  expect("alone");
}

Launched Gathers() {
  Launched all;
  GatherRowsArgs args;
  for (const Memory memory : kMemories) {
    for (const DType from : kDTypes) {
      for (const int64_t D : {1, 4, 20, 70}) {
        const View x = all.In(from, {2, 1, 40, D}, memory);
        const View index = all.In(DType::kI32, {1, 3, 90}, memory, -1, 40);
        args.problems.push_back({x, index, all.Out(DType::kF32, {2, 3, 90, D}, memory), {}, {}});
        const View divisor = all.In(DType::kF32, {2, 1, 40}, memory, 1, 2);
        args.problems.push_back({x, index, all.Out(DType::kBF16, {2, 3, 90, D}), {}, divisor});
        const View columns = all.In(DType::kI32, {1, 1, 9}, memory, -1, static_cast<double>(D));
        args.problems.push_back(
            {x, index, all.Out(DType::kF32, {2, 3, 90, 9}, memory), columns, {}});
      }
    }
  }
  SetProblems(&all, args);
  return all;
}

Launched Scatters() {
  Launched all;
  ScatterRowsArgs args;
  for (const Memory memory : kMemories) {
    for (const int64_t D : {1, 4, 70}) {
      const DType from = kDTypes[all.inputs.size() % 3];
      const View index = all.In(DType::kI32, {2, 1, 90}, memory, -1, 11);
      const View x = all.In(from, {2, 3, 90, D}, memory);
      const View divisor = all.In(DType::kF32, {1, 1, 11}, memory, 1, 2);
      args.problems.push_back({x, index, all.Out(DType::kF32, {2, 3, 11, D}, memory), {}, {}});
      args.problems.push_back({x, index, all.Out(DType::kF16, {1, 3, 11, D}), {}, divisor});
      const View columns = all.In(DType::kI32, {1, 3, D}, memory, -1, 5);
      args.problems.push_back({x, index, all.Out(DType::kF32, {2, 3, 11, 5}), columns, {}});
    }
  }
  // Longer than what one block sorts.
  const View index = all.In(DType::kI32, {2, 5000}, Memory::kDense, -1, 700);
  args.problems.push_back(
      {all.In(DType::kF32, {2, 5000, 8}), index, all.Out(DType::kF32, {2, 700, 8}), {}, {}});
  SetProblems(&all, args);
  return all;
}

Launched Sorts(bool by_index) {
  Launched all;
  SortArgs args = {.descending = by_index, .by_index = by_index};
  for (const int64_t N : {1, 9, 100, 2049, 6000}) {
    for (const int64_t M : {N, N / 2, N / 20}) {
      const View x = all.In(DType::kF32, {2, N}, Memory::kDense, -1, 1);
      const View ties = all.In(DType::kI32, {2, N}, Memory::kPitched, -20, 20);
      args.problems.push_back({x, all.Out(DType::kI32, {2, M})});
      args.problems.push_back({ties, all.Out(DType::kI32, {2, M})});
    }
  }
  SetProblems(&all, args);
  return all;
}

MergeProblem MergeOf(Launched* all, const Shape& shape, size_t parts, DType dtype) {
  Shape rows = shape;
  rows.rank -= 1;
  MergeProblem p;
  for (size_t i = 0; i < parts; ++i) {
    p.parts.push_back({all->In(dtype, shape), all->In(DType::kF32, rows)});
  }
  return p;
}

Launched Merges() {
  Launched all;
  MergeArgs args;
  for (const size_t parts : {1, 3, 4, 40}) {
    for (const int64_t D : {1, 6, 64, 300}) {
      MergeProblem p = MergeOf(&all, {2, 2, 33, D}, parts, kDTypes[parts % 3]);
      p.out = all.Out(DType::kF32, {2, 2, 33, D});
      p.lse = all.Out(DType::kF32, {2, 2, 33});
      args.problems.push_back(p);
    }
  }
  SetProblems(&all, args);
  return all;
}

Launched MergeGrads() {
  Launched all;
  MergeGradArgs args;
  for (const size_t parts : {1, 3, 40}) {
    for (const int64_t D : {1, 6, 64, 300}) {
      MergeGradProblem p = {MergeOf(&all, {2, 33, D}, parts, kDTypes[parts % 3]), {}, {}, {}};
      p.forward.out = all.In(DType::kF32, {2, 33, D});
      p.forward.lse = all.In(DType::kF32, {2, 33});
      p.dout = all.In(DType::kF32, {2, 33, D});
      p.dlse = all.In(DType::kF32, {2, 33});
      for (size_t i = 0; i < parts; ++i) {
        p.dparts.push_back(
            {all.Out(p.forward.parts[i].out.dtype, {2, 33, D}), all.Out(DType::kF32, {2, 33})});
      }
      args.problems.push_back(p);
    }
  }
  SetProblems(&all, args);
  return all;
}

std::vector<RowRange> RangesOf(int64_t N) {
  std::vector<RowRange> ranges = {{0, 0}, {0, N}, {0, N / 2}};
  for (int64_t n = N / 2; n < N; n += 1 + N / 9) ranges.push_back({n, std::min(N, n + 1 + N / 5)});
  ranges[2] = {0, N};
  return ranges;
}

Launched Pools(PoolOp op) {
  Launched all;
  PoolArgs args = {.op = op, .problems = {}};
  for (const int64_t N : {0, 1, 63, 65, 200, 513, 1100}) {
    for (const int64_t D : {1, 8, 33}) {
      const std::vector<RowRange> ranges = RangesOf(N);
      const auto M = static_cast<int64_t>(ranges.size());
      const Memory memory = kMemories[all.inputs.size() % 3];
      PoolProblem p = {all.In(kDTypes[all.inputs.size() % 3], {2, N, D}, memory), {}, {}, ranges};
      p.out = all.Out(DType::kF32, {2, M, D}, memory);
      if (op == PoolOp::kMax) p.arg = all.Out(DType::kI32, {2, M, D});
      if (op == PoolOp::kSumWhere) p.arg = all.In(DType::kI32, {2, N, D}, memory, 0, 5);
      args.problems.push_back(p);
    }
  }
  SetProblems(&all, args);
  return all;
}

Launched Convs() {
  Launched all;
  DepthwiseConvArgs args = {.left = 3, .problems = {}};
  for (const int64_t N : {1, 100, 300}) {
    for (const int64_t D : {3, 8, 70}) {
      const View weight = all.In(DType::kF32, {2, 33});
      const DType dtype = kDTypes[all.inputs.size() % 3];
      args.problems.push_back(
          {all.In(dtype, {2, 2, N, D}), weight, all.Out(DType::kF32, {2, 2, N, D})});
    }
  }
  SetProblems(&all, args);
  return all;
}

Launched ConvGrads() {
  Launched all;
  DepthwiseConvGradArgs args = {.left = 3, .problems = {}};
  for (const int64_t N : {1, 100, 300}) {
    for (const int64_t D : {3, 8, 70, 300}) {
      const DType dtype = kDTypes[all.inputs.size() % 3];
      const View x = all.In(dtype, {2, 2, N, D}), dout = all.In(DType::kF32, {2, 2, N, D});
      args.problems.push_back({x, dout, all.Out(DType::kF32, {2, 33})});
    }
  }
  SetProblems(&all, args);
  return all;
}

// Bits depend on no order and on no list.
TEST(RowsOnCuda, OneResultOfGather) { ExpectOneResult(Gathers()); }
TEST(RowsOnCuda, OneResultOfScatter) { ExpectOneResult(Scatters()); }
TEST(RowsOnCuda, OneResultOfSort) { ExpectOneResult(Sorts(/*by_index=*/false)); }
TEST(RowsOnCuda, OneResultOfSortByIndex) { ExpectOneResult(Sorts(/*by_index=*/true)); }
TEST(RowsOnCuda, OneResultOfMerge) { ExpectOneResult(Merges()); }
TEST(RowsOnCuda, OneResultOfMergeGrad) { ExpectOneResult(MergeGrads()); }
TEST(RowsOnCuda, OneResultOfMean) { ExpectOneResult(Pools(PoolOp::kMean)); }
TEST(RowsOnCuda, OneResultOfMax) { ExpectOneResult(Pools(PoolOp::kMax)); }
TEST(RowsOnCuda, OneResultOfSumWhere) { ExpectOneResult(Pools(PoolOp::kSumWhere)); }
TEST(RowsOnCuda, OneResultOfConv) { ExpectOneResult(Convs()); }
TEST(RowsOnCuda, OneResultOfConvGrad) { ExpectOneResult(ConvGrads()); }

}  // namespace
}  // namespace attnd::testing
