// Transforms so large that the library of a CUDA device computes them, with what is right.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <vector>

#include "kernels/cuda/cuda.h"
#include "kernels/device/fft.h"
#include "tests/cuda/on_host.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {

// [.., N, M], in host memory.
struct LargeTransform {
  // Odd, and beyond one pass of own kernels by its length; even, and by its prime factor 53.
  static constexpr int64_t kOdd[] = {4125, 513}, kEven[] = {2120, 1000};

  LargeTransform(DType dtype, DType of_out, const Shape& shape, Memory memory = Memory::kDense,
                 Memory memory_of_out = Memory::kDense)
      : x(TestArray::Random(1, dtype, shape, memory)), out(of_out, shape, memory_of_out) {}

  FftProblem problem() const { return {.x = x.view(), .out = out.view()}; }

  // Some elements of every matrix against sums in double: both halves of the spectrum, and where it
  // is its own mirror image.
  void Expect() const {
    const PlainArray from = x.Read(), got = out.Read();
    const int64_t N = got.shape[got.shape.rank - 2], M = got.shape[got.shape.rank - 1];
    const auto turn = [](int64_t i, int64_t n) {
      return -2 * M_PI * static_cast<double>(i % n) / n;
    };
    // Results are of size sqrt(N M / 3), float32 and 30 roundings of 6e-8 away.
    const double absolute = 1e-6 * std::sqrt(static_cast<double>(N * M) / 3);
    std::vector<double> re(static_cast<size_t>(N)), im(re.size());
    for (int64_t first = 0; first < got.shape.size(); first += N * M) {
      for (const int64_t m : {int64_t{0}, int64_t{1}, M / 2, M / 2 + 1, M - 1}) {
        for (int64_t a = 0; a < N; ++a) {
          double sum_re = 0, sum_im = 0;
          for (int64_t b = 0; b < M; ++b) {
            const double value = from.values[static_cast<size_t>(first + a * M + b)];
            sum_re += value * std::cos(turn(m * b, M));
            sum_im += value * std::sin(turn(m * b, M));
          }
          re[static_cast<size_t>(a)] = sum_re, im[static_cast<size_t>(a)] = sum_im;
        }
        for (const int64_t n : {int64_t{0}, int64_t{1}, 977 % N, N / 2, N / 2 + 1, N - 1}) {
          double want = 0;
          for (int64_t a = 0; a < N; ++a) {
            want += re[static_cast<size_t>(a)] * std::cos(turn(n * a, N)) -
                    im[static_cast<size_t>(a)] * std::sin(turn(n * a, N));
          }
          EXPECT_NEAR(got.values[static_cast<size_t>(first + n * M + m)], want,
                      absolute + Rounding() * std::fabs(want))
              << "[" << n << ", " << m << "] of the matrix at " << first;
        }
      }
    }
    EXPECT_TRUE(out.GuardsIntact());
  }

  TestArray x, out;

 private:
  double Rounding() const {
    const DType dtype = out.view().dtype;
    return dtype == DType::kF16 ? 0x1p-11 : dtype == DType::kBF16 ? 0x1p-8 : 0;
  }
};

// Runs the transforms on a device alone or in a list; all numbers of the results are NaN before.
inline void RunTransforms(Device& device, const std::vector<LargeTransform*>& transforms) {
  FftArgs args;
  for (LargeTransform* transform : transforms) {
    transform->out.Write(PlainArray(transform->out.view().shape, NAN));
    args.problems.push_back(transform->problem());
  }
  RunOn(device, [&](Stream& stream) { return device.Run(stream, args); });
}

// Of a device behind OnHost.
inline CudaLibrary CufftOf(Device& device) {
  return CudaLibraryOf(static_cast<OnHost&>(device).inner(), "cuFFT");
}

}  // namespace attnd::testing
