// What surrounds a transform by cuFFT: elements of any dtype and strides become rows of float32,
// and real parts of the spectrum become the result.
//
// Bound: bytes. Each element is read and written once: 8 bytes of float32 on both ways.
#pragma once

#include "kernels/cuda/divider.h"
#include "kernels/cuda/fft/fft_pass.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/views.h"

namespace attnd::cuda {

constexpr int kFftCopyThreads = 256;
// Of a block: eight a thread.
constexpr int kFftCopyElements = 2048;

// A matrix [N,M] of less than 2^31 elements, and its rows of M/2 + 1 complex numbers, which hold M
// real ones before the transform.
struct FftCopy {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t row = 0, column = 0;  // strides
  int N = 0, M = 0;
  Divider by_row;  // M
  FftComplex* spectrum = nullptr;

  SIMT_FN int64_t pitch() const { return M / 2 + 1; }
};

// Calls f(n, m) for the elements of this block.
template <class F>
SIMT_FN void ForEachElement(const FftCopy& c, int64_t block, const F& f) {
  const int first = static_cast<int>(block) * kFftCopyElements, size = c.N * c.M;
  for (int i = static_cast<int>(threadIdx.x); i < kFftCopyElements; i += kFftCopyThreads) {
    const int e = first + i;
    if (e >= size) return;
    const int n = static_cast<int>(c.by_row.Quotient(static_cast<uint32_t>(e)));
    f(n, e - n * c.M);
  }
}

static __global__ void __launch_bounds__(kFftCopyThreads)
    FftLoadKernel(const __grid_constant__ Problems<FftCopy> problems) {
  const Place<FftCopy> place = FindPlace(problems);
  const FftCopy& c = place.problem;
  auto* const rows = reinterpret_cast<float*>(c.spectrum);
  ForEachElement(c, place.block, [&](int n, int m) {
    rows[2 * c.pitch() * n + m] = LoadFloat(c.data, c.dtype, c.row * n + c.column * m);
  });
}

// The spectrum of a real matrix is Hermitian: the real part at [n, m] is that at [-n, -m].
static __global__ void __launch_bounds__(kFftCopyThreads)
    FftRealKernel(const __grid_constant__ Problems<FftCopy> problems) {
  const Place<FftCopy> place = FindPlace(problems);
  const FftCopy& c = place.problem;
  ForEachElement(c, place.block, [&](int n, int m) {
    const bool is_mirrored = m > c.M / 2;
    const int row = is_mirrored && n > 0 ? c.N - n : n, column = is_mirrored ? c.M - m : m;
    StoreFloat(c.data, c.dtype, c.row * n + c.column * m, c.spectrum[c.pitch() * row + column].re);
  });
}

}  // namespace attnd::cuda
