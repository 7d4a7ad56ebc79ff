// feature_map: the maps of kernel methods that are more than one elementwise operation.
#pragma once

#include <cstdint>

#include "kernels/ops/tensor.h"

namespace attnd {

class Ops;

// Deterministic parameter-free projection (Schlag et al. 2021, section 5): with r = [relu(x),
// relu(-x)], block j = 1..nu holds r_i r_((i - j) mod 2D), i = 0..2D-1. x [.., D] -> [.., 2 nu D]
// float32.
Tensor Dpfp(Ops& ops, const Tensor& x, int64_t nu);

// x / sum of the last axis; a sum of exactly 0 gives zeros and a zero gradient.
Tensor SumNormalized(Ops& ops, const Tensor& x);

// x / sqrt(sum of squares of the last axis + eps).
Tensor L2Normalized(Ops& ops, const Tensor& x, double eps);

}  // namespace attnd
