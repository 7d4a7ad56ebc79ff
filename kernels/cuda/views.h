// Elements of views in kernels: any dtype, any strides, read as float32.
#pragma once

#include "kernels/core/view.h"
#include "kernels/cuda/simt.h"

namespace attnd::cuda {

// Element `at` of an array of a float dtype or int32. The branch is the same in all threads.
SIMT_FN float LoadFloat(const void* data, DType dtype, int64_t at) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(data)[at];
    case DType::kF16:
      return __half2float(static_cast<const simt::f16*>(data)[at]);
    case DType::kBF16:
      return __bfloat162float(static_cast<const simt::bf16*>(data)[at]);
    case DType::kI32:
      return static_cast<float>(static_cast<const int32_t*>(data)[at]);
    default:
      return 0;
  }
}

// Rounds to the nearest, ties to even.
SIMT_FN void StoreFloat(void* data, DType dtype, int64_t at, float value) {
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(data)[at] = value;
      return;
    case DType::kF16:
      static_cast<simt::f16*>(data)[at] = __float2half_rn(value);
      return;
    case DType::kBF16:
      static_cast<simt::bf16*>(data)[at] = __float2bfloat16_rn(value);
      return;
    case DType::kI32:
      static_cast<int32_t*>(data)[at] = static_cast<int32_t>(value);
      return;
    default:
      return;
  }
}

}  // namespace attnd::cuda
