// Unary operations as functions that are called: for kernels that need few registers more than they
// need these fast.
#pragma once

#include "kernels/cuda/element/element_math.h"

namespace attnd::cuda {

[[maybe_unused]] static __device__ __noinline__ float CalledMap(ElementOp op, float x) {
  return ElementMapOf(op, x);
}
[[maybe_unused]] static __device__ __noinline__ float CalledSlope(ElementOp op, float g, float x) {
  return ElementSlopeOf(op, g, x);
}

}  // namespace attnd::cuda
