// The real part of the discrete Fourier transform as products with its matrices.
#pragma once

#include "kernels/ops/ops.h"

namespace attnd {

// The most rows and columns: the host builds two matrices of n x 2 n.
constexpr int64_t kMostDft = 2048;

// The same as Ops::RealFft2 of x [B,H,N,C]: T = x (cos | sin) over channels, then
// out = (cos | -sin) T over rows. REQUIRES: N, C <= kMostDft.
Tensor DftByProducts(Ops& ops, const Tensor& x);

}  // namespace attnd
