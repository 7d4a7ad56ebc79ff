// Four elements side by side, any dtype, as float32: 16 or, of two-byte elements, 8 bytes that are
// aligned to as much.
#pragma once

#include "kernels/core/dtype.h"
#include "kernels/cuda/simt.h"

namespace attnd::cuda {

// Calls f with a null pointer to the elements of a float dtype: the branch is the same in all
// threads, and outside of f's loops.
template <class F>
SIMT_FN void WithFloatType(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kF32:
      return f(static_cast<float*>(nullptr));
    case DType::kF16:
      return f(static_cast<simt::f16*>(nullptr));
    case DType::kBF16:
      return f(static_cast<simt::bf16*>(nullptr));
    default:
      return;
  }
}
// Int32, too.
template <class F>
SIMT_FN void WithType(DType dtype, const F& f) {
  if (dtype == DType::kI32) return f(static_cast<int32_t*>(nullptr));
  WithFloatType(dtype, f);
}

SIMT_FN float ToFloat(float x) { return x; }
SIMT_FN float ToFloat(simt::f16 x) { return __half2float(x); }
SIMT_FN float ToFloat(simt::bf16 x) { return __bfloat162float(x); }
SIMT_FN float ToFloat(int32_t x) { return static_cast<float>(x); }

// Rounds to the nearest, ties to even.
SIMT_FN void Store(float* to, float x) { *to = x; }
SIMT_FN void Store(simt::f16* to, float x) { *to = __float2half_rn(x); }
SIMT_FN void Store(simt::bf16* to, float x) { *to = __float2bfloat16_rn(x); }

SIMT_FN void LoadFour(const float* from, float (&x)[4]) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
}
SIMT_FN void LoadFour(const int32_t* from, float (&x)[4]) {
  const int4 four = *reinterpret_cast<const int4*>(from);
  x[0] = static_cast<float>(four.x), x[1] = static_cast<float>(four.y);
  x[2] = static_cast<float>(four.z), x[3] = static_cast<float>(four.w);
}
SIMT_FN void LoadFour(const simt::bf16* from, float (&x)[4]) {
  const uint2 pairs = *reinterpret_cast<const uint2*>(from);
  x[0] = __uint_as_float(pairs.x << 16), x[1] = __uint_as_float(pairs.x & 0xffff0000u);
  x[2] = __uint_as_float(pairs.y << 16), x[3] = __uint_as_float(pairs.y & 0xffff0000u);
}
SIMT_FN float HalfOf(unsigned bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits & 0xffff)));
}
SIMT_FN void LoadFour(const simt::f16* from, float (&x)[4]) {
  const uint2 pairs = *reinterpret_cast<const uint2*>(from);
  x[0] = HalfOf(pairs.x), x[1] = HalfOf(pairs.x >> 16);
  x[2] = HalfOf(pairs.y), x[3] = HalfOf(pairs.y >> 16);
}

SIMT_FN void StoreFour(float* to, const float (&x)[4]) {
  *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
}
SIMT_FN unsigned BitsOf(simt::bf16 x) { return __bfloat16_as_ushort(x); }
SIMT_FN unsigned BitsOf(simt::f16 x) { return __half_as_ushort(x); }
SIMT_FN void StoreFour(simt::bf16* to, const float (&x)[4]) {
  *reinterpret_cast<uint2*>(to) =
      make_uint2(BitsOf(__float2bfloat16_rn(x[0])) | BitsOf(__float2bfloat16_rn(x[1])) << 16,
                 BitsOf(__float2bfloat16_rn(x[2])) | BitsOf(__float2bfloat16_rn(x[3])) << 16);
}
SIMT_FN void StoreFour(simt::f16* to, const float (&x)[4]) {
  *reinterpret_cast<uint2*>(to) =
      make_uint2(BitsOf(__float2half_rn(x[0])) | BitsOf(__float2half_rn(x[1])) << 16,
                 BitsOf(__float2half_rn(x[2])) | BitsOf(__float2half_rn(x[3])) << 16);
}

}  // namespace attnd::cuda
