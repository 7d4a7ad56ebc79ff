// Products so large that the library of a CUDA device computes them, with what is right.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "kernels/cuda/cuda.h"
#include "kernels/device/matmul.h"
#include "tests/cuda/on_host.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {

// How the elements of both operands and of the result lie.
struct Orders {
  Memory a = Memory::kDense, b = Memory::kDense, out = Memory::kDense;
};

// [batch, M, K] [1 or batch, K, N], in host memory.
struct LargeProduct {
  static constexpr int64_t M = 1000, N = 1096, K = 1000;  // a little over 2^30 products

  LargeProduct(DType dtype, DType of_out, const Orders& orders = {}, int64_t batch = 1,
               bool shares_b = true, int64_t rows = M)
      : a(TestArray::Random(1, dtype, {batch, rows, K}, orders.a)),
        b(TestArray::Random(2, dtype, {shares_b ? 1 : batch, K, N}, orders.b)),
        out(of_out, {batch, rows, N}, orders.out) {}

  MatMulProblem problem() const { return {.a = a.view(), .b = b.view(), .out = out.view()}; }

  // Some rows of every matrix against sums in double.
  void Expect(double alpha) const {
    const PlainArray left = a.Read(), right = b.Read(), got = out.Read();
    const int64_t batch = got.shape[0], rows = got.shape[1];
    std::vector<int64_t> some = {0, 1, 127, rows / 2, rows - 257, rows - 256, rows - 1};
    std::vector<double> truth(N), ours(N);
    for (int64_t matrix = 0; matrix < batch; ++matrix) {
      const double* const of_b = right.values.data() + (right.shape[0] == 1 ? 0 : matrix) * K * N;
      for (const int64_t row : some) {
        std::fill(truth.begin(), truth.end(), 0.0);
        for (int64_t k = 0; k < K; ++k) {
          const double factor = left.values[static_cast<size_t>((matrix * rows + row) * K + k)];
          for (int64_t n = 0; n < N; ++n) truth[static_cast<size_t>(n)] += factor * of_b[k * N + n];
        }
        double worst = 0;
        for (int64_t n = 0; n < N; ++n) {
          const double x = got.values[static_cast<size_t>((matrix * rows + row) * N + n)];
          const double want = alpha * truth[static_cast<size_t>(n)];
          const double error = std::fabs(x - want) - Rounding() * std::fabs(want);
          worst = std::isnan(x) ? INFINITY : std::max(worst, error);
          if (std::isinf(worst)) break;
        }
        EXPECT_LE(worst, kSumError * std::fabs(alpha)) << "matrix " << matrix << " row " << row;
      }
    }
    EXPECT_TRUE(out.GuardsIntact());
  }

  TestArray a, b, out;

 private:
  // Terms are uniform in (-1, 1) twice: partial sums of 1000 stay below 60, so that each of 1000
  // additions rounds by less than 60 x 2^-24. They add up as a random walk: 32 times that, and 4
  // times more for the tail.
  static constexpr double kSumError = 60 * 0x1p-24 * 32 * 4;
  double Rounding() const {
    const DType dtype = out.view().dtype;
    return dtype == DType::kF16 ? 0x1p-11 : dtype == DType::kBF16 ? 0x1p-8 : 0;
  }
};

// Runs the products on a device alone or in a list; all numbers of the results are NaN before.
inline void RunProducts(Device& device, double alpha, const std::vector<LargeProduct*>& products) {
  MatMulArgs args{.alpha = alpha};
  for (LargeProduct* product : products) {
    product->out.Write(PlainArray(product->out.view().shape, NAN));
    args.problems.push_back(product->problem());
  }
  RunOn(device, [&](Stream& stream) { return device.Run(stream, args); });
}

// Of a device behind OnHost.
inline CudaLibrary LibraryOf(Device& device) {
  return CudaLibraryOf(static_cast<OnHost&>(device).inner(), "cuBLASLt");
}

}  // namespace attnd::testing
