// fft: the real part of the discrete Fourier transform over the last two axes.
//
//   out[n, m] = Re sum_{a, b} x[a, b] exp(-2 pi i (n a / N + m b / M))    (Lee-Thorp et al. 2021,
//                                                                         eq. 3)
//
// Its own adjoint: the gradient is the same transform of the gradient.
#pragma once

#include <vector>

#include "kernels/core/view.h"

namespace attnd {

// [.., N, M] of any float dtype, any strides. float32 inside; the error grows with log(N M).
struct FftProblem {
  View x, out;
};

struct FftArgs {
  std::vector<FftProblem> problems;
};

// For ForEachView of launch.h.
template <class F>
void ForEachView(const FftProblem& p, const F& f) {
  f(p.x), f(p.out);
}

}  // namespace attnd
