// A line of 2^30 elements that is not dense has chunks whose parts one warp puts together: how many
// there are, and what is predicted of it.
#include <gtest/gtest.h>

#include "kernels/cuda/along/cut_lines.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/plain/plain.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {
namespace {

constexpr int64_t kLong = int64_t{1} << 30;

// Rates of an H100: where bytes alone are no bound.
constexpr cuda::Cuda kFast = {.processors = 132, .flops = 6e13, .bytes_per_second = 3e12};

TEST(LongLines, ReduceHasFewChunks) {
  const CudaDevices found = NewCudaDevices({});
  Device& device = *found.devices.at(0);
  Stream dry(device, nullptr);
  const ReduceProblem problem = {.x = DenseView(nullptr, DType::kF32, {kLong, 2}),
                                 .out = DenseView(nullptr, DType::kF32, {1, 2})};
  ASSERT_TRUE(device.Run(dry, ReduceArgs{.axis = 0, .problems = {problem}}).ok());
  // 16 for each chunk.
  EXPECT_LE(dry.workspace().peak_bytes(), 1 << 20);
}

// Every row once, where chunks have more rows than usual.
TEST(LongLines, ReduceReadsEachRowOnce) {
  constexpr int64_t kRows = 8192 * 1024 + 1;
  TestArray row(DType::kF32, {1, 2}), out(DType::kF32, {1, 2});
  row.Write(PlainArray({1, 2}, 0.5));
  View x = row.view();
  x.shape.dims[0] = kRows;
  x.stride[0] = 0;
  Device& device = CpuOf("cuda", 1);
  const ReduceArgs args = {.op = ReduceOp::kSum, .axis = 0, .problems = {{x, out.view()}}};
  RunOn(device, [&](Stream& stream) { return device.Run(stream, args); });
  ExpectNear(out.Read(), PlainArray({1, 2}, 0.5 * kRows), 0, 0);
}

TEST(LongLines, PredictionsKnowHowLongPartsTakeToMeet) {
  const View x = DenseView(nullptr, DType::kF32, {kLong, 2});
  cuda::CutLines lines;
  lines.Add(cuda::LinesOf({x, x, {}, {}}, /*axis=*/0, cuda::Lines::kColumnChunk), 4, 4);
  // 2^22 chunks, 32 at a time.
  EXPECT_GE(lines.MergedSeconds(kFast, 16), 0.1);
  cuda::CutLines dense;
  const View rows = DenseView(nullptr, DType::kF32, {2, kLong});
  dense.Add(cuda::LinesOf({rows, rows, {}, {}}, /*axis=*/1, cuda::Lines::kColumnChunk), 4, 4);
  EXPECT_LE(dense.MergedSeconds(kFast, 16), 0.01);
}

}  // namespace
}  // namespace attnd::testing
