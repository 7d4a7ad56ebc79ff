// fft: the real part of the discrete Fourier transform over the last two axes. The contract of
// Ops::RealFft2 and Backend::RealFft2.
//
//   out[n, m] = Re sum_{a, b} x[a, b] exp(-2 pi i (n a / N + m b / M))    (Lee-Thorp et al. 2021,
//                                                                         eq. 3)
//
// Its own adjoint: the gradient is the same transform of the gradient.
#pragma once

#include <span>

#include "kernels/core/view.h"
#include "kernels/ops/tensor.h"

namespace attnd {

// [.., N, M] of any float dtype, any strides. float32 inside; the error grows with log(N M).
struct FftProblem {
  View x, out;
};

struct FftArgs {
  std::span<const FftProblem> problems;
};

}  // namespace attnd
