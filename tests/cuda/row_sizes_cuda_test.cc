// Primitives over rows on the CUDA device: the sizes at which its kernels change what they do.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/rows/key_sort.h"
#include "tests/cuda/emulator/options.h"
#include "tests/cuda/on_host.h"
#include "tests/plain/plain.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

Device& Cuda() { return CpuOf("cuda", 1); }

void RunLaunch(const Launch& launch) {
  RunOn(Cuda(), [&](Stream& stream) { return Cuda().Run(stream, launch); });
}

// Rows that are read four elements at a time, and those that are not.
TEST(RowSizesOnCuda, BitsDependOnNoAlignment) {
  std::vector<std::byte> expected;
  for (const Memory memory : {Memory::kDense, Memory::kPitched}) {
    const TestArray x = TestArray::Random(1, DType::kF32, {2, 2, 90, 64}, memory);
    const TestArray dout = TestArray::Random(2, DType::kF32, {2, 2, 90, 64}, memory);
    const TestArray dweight(DType::kF32, {2, 9});
    RunLaunch(
        DepthwiseConvGradArgs{.left = 4, .problems = {{x.view(), dout.view(), dweight.view()}}});
    if (memory == Memory::kDense) expected = dweight.Bytes();
    EXPECT_TRUE(dweight.Bytes() == expected);
  }
}

// Around the sizes of a tile and of runs of several, with many results and few, and many ties.
TEST(RowSizesOnCuda, LongRowsAreSorted) {
  for (const int64_t N : {2047, 2048, 2049, 4096, 4097, 10000}) {
    for (const int64_t M : {int64_t{1}, N / 8, N / 8 + 1, int64_t{2100}, N - 1, N}) {
      if (M > N) continue;
      for (const bool has_ties : {false, true}) {
        const TestArray x = has_ties
                                ? TestArray::Random(1, DType::kI32, {2, N}, Memory::kDense, 0, 9)
                                : TestArray::Random(2, DType::kF32, {2, N});
        const TestArray order(DType::kI32, {2, M}), plain(DType::kI32, {2, M});
        SortArgs args = {.descending = has_ties, .problems = {{x.view(), order.view()}}};
        RunLaunch(args);
        args.problems[0].order = plain.view();
        PlainRun(args);
        EXPECT_TRUE(order.Bytes() == plain.Bytes()) << N << " " << M << " " << has_ties;
        EXPECT_TRUE(order.GuardsIntact());
      }
    }
  }
}

// Rows that take more scratch memory than there may be are sorted in turns.
TEST(RowSizesOnCuda, RowsAreSortedInTurns) {
  auto& device = dynamic_cast<cuda::CudaDevice&>(dynamic_cast<OnHost&>(Cuda()).inner());
  constexpr int64_t kRows = 5, kLong = 5000, kShort = 7;
  std::vector<float> keys(kRows * kLong);
  std::mt19937 random(1);
  for (float& key : keys) key = static_cast<float>(random() % 1000);
  Stream stream(device, &device.memory()), dry(device, nullptr);
  const auto run = [&](Stream& on, float* x, int32_t* order) {
    const cuda::KeyRows rows = {
        .x = DenseView(x, DType::kF32, {kRows, kLong}), .M = kLong, .indices = order};
    cuda::KeyRows few = rows;
    few.x.shape.dims[1] = few.M = kShort;
    few.indices = order == nullptr ? nullptr : order + kRows * kLong;
    return cuda::SortKeys(device, on, {rows, few, rows}, /*most_scratch=*/3 * 2 * kLong);
  };
  const auto x = stream.workspace().Allocate(static_cast<int64_t>(keys.size() * sizeof(float)));
  const auto order = stream.workspace().Allocate(kRows * (kLong + kShort) * 4);
  const std::span<const std::byte> bytes[] = {std::as_bytes(std::span(keys))};
  ASSERT_TRUE(device.Upload(stream, x->data(), bytes, nullptr).ok());
  ASSERT_TRUE(run(dry, nullptr, nullptr).ok());
  const int64_t before = stream.workspace().current_bytes();
  ASSERT_TRUE(
      run(stream, static_cast<float*>(x->data()), static_cast<int32_t*>(order->data())).ok());
  EXPECT_EQ(stream.workspace().peak_bytes() - before, dry.workspace().peak_bytes());
  constexpr int64_t kTables = 4096;
  constexpr int64_t kTurn = 3 * 2 * kLong * 8;
  EXPECT_LE(dry.workspace().peak_bytes(), kTurn / 8 * 9 + kTables);  // Workspace::AllocateShared
  std::vector<int32_t> got(kRows * (kLong + kShort));
  ASSERT_TRUE(device.Download(stream, order->data(), std::as_writable_bytes(std::span(got))).ok());
  ASSERT_TRUE(stream.Wait().ok());
  for (int64_t row = 0; row < kRows; ++row) {
    const float* of = keys.data() + row * kLong;
    for (const int64_t N : {kLong, kShort}) {
      std::vector<int32_t> expected(static_cast<size_t>(N));
      std::iota(expected.begin(), expected.end(), 0);
      std::stable_sort(expected.begin(), expected.end(),
                       [&](int32_t a, int32_t b) { return of[a] < of[b]; });
      const int32_t* own =
          N == kLong ? got.data() + row * kLong : got.data() + kRows * kLong + row * kShort;
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), own)) << row << " " << N;
    }
  }
}

TEST(RowSizesOnCuda, LongListsAreScattered) {
  const TestArray x = TestArray::Random(1, DType::kF32, {2, 9000, 12});
  TestArray index = TestArray::Random(2, DType::kI32, {2, 9000}, Memory::kDense, -1, 3000);
  const TestArray out(DType::kF32, {2, 3000, 12}), plain(DType::kF32, {2, 3000, 12});
  ScatterRowsArgs args = {.problems = {{x.view(), index.view(), out.view(), {}, {}}}};
  RunLaunch(args);
  args.problems[0].out = plain.view();
  PlainRun(args);
  ExpectNear(out.Read(), plain.Read(), 0, 1e-5);
}

// An index that repeats in memory, not in its shape.
TEST(RowSizesOnCuda, RepeatedListsAreScattered) {
  const TestArray x = TestArray::Random(1, DType::kF32, {3, 2, 50, 8});
  TestArray index = TestArray::Random(2, DType::kI32, {3, 2, 50}, Memory::kDense, -1, 9);
  View repeated = index.view();
  repeated.stride[0] = 0;
  for (const Shape& shape : {Shape{3, 2, 9, 8}, Shape{1, 2, 9, 8}, Shape{1, 1, 9, 8}}) {
    const TestArray out(DType::kF32, shape), plain(DType::kF32, shape);
    ScatterRowsArgs args = {.problems = {{x.view(), repeated, out.view(), {}, {}}}};
    RunLaunch(args);
    args.problems[0].out = plain.view();
    PlainRun(args);
    ExpectNear(out.Read(), plain.Read(), 0, 1e-5);
  }
}

// Ranges of one launch, of two and of three.
TEST(RowSizesOnCuda, LongRangesArePooled) {
  for (const int64_t N : {512, 513, 5000, 270000}) {
    const int64_t D = N > 10000 ? 1 : 5;
    const TestArray x = TestArray::Random(3, DType::kF32, {N, D});
    PlainArray values = x.Read();
    if (N == 5000) values.values[4000 * 5 + 1] = NAN;
    x.view().As<float>()[0] = -5;
    if (N == 5000) x.view().As<float>()[4000 * 5 + 1] = NAN;
    const TestArray where = TestArray::Random(4, DType::kI32, {N, D}, Memory::kDense, 0, 3);
    const std::vector<RowRange> ranges = {{0, 0}, {0, N}, {1, 3}, {1, N}};
    for (const PoolOp op : {PoolOp::kSum, PoolOp::kMean, PoolOp::kMax, PoolOp::kSumWhere}) {
      const TestArray out(DType::kF32, {4, D}), plain(DType::kF32, {4, D});
      const TestArray arg(DType::kI32, {4, D}), plain_arg(DType::kI32, {4, D});
      PoolArgs args = {.op = op, .problems = {{x.view(), out.view(), {}, ranges}}};
      if (op == PoolOp::kMax) args.problems[0].arg = arg.view();
      if (op == PoolOp::kSumWhere) args.problems[0].arg = where.view();
      RunLaunch(args);
      args.problems[0].out = plain.view();
      if (op == PoolOp::kMax) args.problems[0].arg = plain_arg.view();
      PlainRun(args);
      // Sums of numbers below 1, some 30 roundings of at most their sum.
      const double slack = op == PoolOp::kMax ? 0 : 30 * 6e-8 * std::sqrt(static_cast<double>(N));
      ExpectNear(out.Read(), plain.Read(), 1e-6, slack);
      EXPECT_EQ(arg.Read().values, plain_arg.Read().values);
    }
  }
}

TEST(RowSizesOnCuda, ConvolutionsOfManyWidths) {
  unsigned seed = 0;
  for (const int64_t w : {1, 7, 8, 9, 33, 70}) {
    for (const int64_t left : {int64_t{0}, w / 2, w + 20}) {
      for (const int64_t N : {1, 30, 200}) {
        for (const int64_t D : {3, 32}) {
          SCOPED_TRACE(std::to_string(w) + " taps, left " + std::to_string(left) + ", rows " +
                       std::to_string(N) + ", columns " + std::to_string(D));
          seed += 1;
          const DType dtype = kDTypes[seed % 3];
          const Memory memory = seed % 2 == 0 ? Memory::kDense : Memory::kPitched;
          const Shape shape = {2, 2, N, D};
          const TestArray x = TestArray::Random(seed, dtype, shape, memory);
          const TestArray g = TestArray::Random(seed + 1, DType::kF32, shape, memory);
          const TestArray weight = TestArray::Random(seed + 2, DType::kF32, {2, w}, memory);
          const TestArray out(DType::kF32, shape, memory), plain(DType::kF32, shape);
          const TestArray dweight(DType::kF32, {2, w}), plain_dweight(DType::kF32, {2, w});
          for (const bool flipped : {false, true}) {
            DepthwiseConvArgs args = {.left = left,
                                      .flipped = flipped,
                                      .problems = {{x.view(), weight.view(), out.view()}}};
            RunLaunch(args);
            args.problems[0].out = plain.view();
            PlainRun(args);
            ExpectNear(out.Read(), plain.Read(), 0, 1e-5);
            EXPECT_TRUE(out.GuardsIntact());
          }
          DepthwiseConvGradArgs grad = {.left = left,
                                        .problems = {{x.view(), g.view(), dweight.view()}}};
          RunLaunch(grad);
          grad.problems[0].dweight = plain_dweight.view();
          PlainRun(grad);
          ExpectNear(dweight.Read(), plain_dweight.Read(), 0, 1e-4);
        }
      }
    }
  }
}

// A row that no tap reaches is not multiplied.
TEST(RowSizesOnCuda, InfinitiesStayWithTheirTaps) {
  const TestArray x(DType::kF32, {1, 1, 40, 4}), out(DType::kF32, {1, 1, 40, 4});
  const TestArray weight = TestArray::Random(1, DType::kF32, {1, 3});
  PlainArray values(Shape{1, 1, 40, 4}, 1);
  values.values[20 * 4] = std::numeric_limits<double>::infinity();
  values.values[30 * 4 + 1] = NAN;
  TestArray(x).Write(values);
  RunLaunch(DepthwiseConvArgs{.left = 1, .problems = {{x.view(), weight.view(), out.view()}}});
  const PlainArray got = out.Read();
  for (int64_t n = 0; n < 40; ++n) {
    EXPECT_EQ(std::isinf(got.At({0, 0, n, 0})), n >= 19 && n <= 21) << n;
    EXPECT_EQ(std::isnan(got.At({0, 0, n, 1})), n >= 29 && n <= 31) << n;
    EXPECT_TRUE(std::isfinite(got.At({0, 0, n, 2})));
  }
}

// A launch of several slices.
TEST(RowSizesOnCuda, SlicesAreOneLaunch) {
  const TestArray x = TestArray::Random(1, DType::kF32, {3000, 64});
  const TestArray index = TestArray::Random(2, DType::kI32, {60000}, Memory::kDense, -1, 3000);
  const TestArray out(DType::kF32, {60000, 64});
  emu::TakeCounters();
  RunLaunch(GatherRowsArgs{.problems = {{x.view(), index.view(), out.view(), {}, {}}}});
  EXPECT_GT(emu::TakeCounters().launches, 4);
  const float *from = x.view().As<float>(), *to = out.view().As<float>();
  for (int64_t m = 0; m < 60000; ++m) {
    const int64_t n = index.view().As<int32_t>()[m];
    for (int64_t d = 0; d < 64; ++d) {
      ASSERT_EQ(to[m * 64 + d], n < 0 ? 0 : from[n * 64 + d]) << m;
    }
  }
}

}  // namespace
}  // namespace attnd::testing
