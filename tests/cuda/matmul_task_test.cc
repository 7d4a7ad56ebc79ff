// A product of 2^24 elements of k with a result of one kept one block busy for 16384 steps, which
// nothing could stop: how sums are cut, and what is predicted of them.
#include "kernels/cuda/matmul/matmul_task.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cuda_device.h"

namespace attnd::cuda {
namespace {

constexpr int64_t kLong = int64_t{1} << 24;

struct Product {
  int64_t M, N, K, batches = 1, summed = 1;
  DType dtype = DType::kF32;

  MatMulProblem Problem() const {
    return {.a = DenseView(nullptr, dtype, {summed, batches, M, K}),
            .b = DenseView(nullptr, dtype, {summed, batches, K, N}),
            .out = DenseView(nullptr, DType::kF32, {1, batches, M, N})};
  }
  MatMulTask Task() const { return MatMulTask(Problem()); }
  std::string Text() const {
    return std::to_string(M) + " " + std::to_string(N) + " " + std::to_string(K) + " x " +
           std::to_string(summed) + " " + std::string(Name(dtype));
  }
};

TEST(MatMulTask, ChunksOfSmallResultsAreShort) {
  EXPECT_EQ((Product{1, 1, kLong}.Task().chunks), kLong / 4096);
  EXPECT_EQ((Product{1, 1, kLong}.Task().chunk), 4096 / MatMulTask::kStep32);
  const Product halves{.M = 1, .N = 1, .K = kLong, .dtype = DType::kF16};
  EXPECT_EQ(halves.Task().chunk, 4096 / MatMulTask::kStep16);
  // A step of summed matrices has the K products of one.
  const Product thin{.M = 1, .N = 1, .K = 1, .summed = kLong};
  EXPECT_EQ(thin.Task().chunk, 4096);
}

TEST(MatMulTask, SumsThatWereShortAreCutAsMuch) {
  EXPECT_EQ((Product{64, 64, 4096}.Task().chunks), 4);
  EXPECT_EQ((Product{64, 64, 65536}.Task().chunks), 32);
  EXPECT_EQ((Product{512, 512, 65536}.Task().chunks), 4);
  // Blocks are many.
  EXPECT_EQ((Product{1024, 1024, 65536}.Task().chunks), 1);
}

TEST(MatMulTask, NoBlockIsLongAndChunksAreFewerBytesThanOperands) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (int64_t M : {1, 2, 63, 64, 65, 500, 724, 5000}) {
      for (int64_t N : {1, 64, 65, 724, 8192}) {
        for (int64_t K : {int64_t{1}, int64_t{40}, kLong}) {
          const Product product{M, N, K, /*batches=*/3, /*summed=*/kLong / K, dtype};
          SCOPED_TRACE(product.Text());
          const MatMulTask task = product.Task();
          if ((M + 63) / 64 * ((N + 63) / 64) > 128) continue;
          EXPECT_LE(task.chunk * std::min<int64_t>(K, 32), 24'000);
          const MatMulProblem problem = product.Problem();
          EXPECT_LE(4 * task.partial_floats(), (problem.a.bytes() + problem.b.bytes()) / 8);
        }
      }
    }
  }
}

// Alone or with others: results are the same bits.
TEST(MatMulTask, CutsDoNotDependOnTheBatch) {
  for (int64_t batches : {2, 1000}) {
    EXPECT_EQ((Product{5, 40, kLong, batches}.Task().chunk),
              (Product{5, 40, kLong, 1}.Task().chunk));
  }
}

TEST(MatMulTask, PredictionsKnowWhatBlocksTake) {
  const CudaDevices found = NewCudaDevices({});
  auto& device = static_cast<CudaDevice&>(*found.devices.at(0));
  const Cuda& cuda = device.cuda();
  const auto seconds = [&](const Product& product) {
    Stream dry(device, nullptr);
    EXPECT_TRUE(device.Run(dry, MatMulArgs{.problems = {product.Problem()}}).ok());
    return dry.work().seconds;
  };
  // The steps of a block follow one another: 32 of whole tiles, by one of the processors.
  const double tile = 2.0 * 64 * 64 * 32 * 6 / (cuda.tensor_flops / cuda.processors);
  EXPECT_GE(seconds({.M = 1, .N = 1, .K = 1000}), 32 * std::max(tile, 5e-7));
  // A result of one element takes warps as long as one of 16 x 32.
  const double thin = seconds({.M = 1, .N = 1, .K = kLong});
  EXPECT_GE(thin, 2.0 * 16 * 32 * kLong / cuda.tensor_flops);
  EXPECT_NEAR(seconds({.M = 16, .N = 32, .K = kLong}), thin, thin / 2);
}

}  // namespace
}  // namespace attnd::cuda
