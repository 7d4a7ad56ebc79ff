// Rows of storage with any distance between elements, as float32.
#if defined(ATTND_CPU_STRIDED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_STRIDED_INL_H_
#undef ATTND_CPU_STRIDED_INL_H_
#else
#define ATTND_CPU_STRIDED_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/simd/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

// n elements `stride` apart, times `factor`.
HWY_MAYBE_UNUSED static void ReadFloats(DType dtype, const char* from, int64_t stride, int64_t n,
                                        float* to, float factor = 1.0f) {
  if (stride == 1) return Widen(dtype, from, n, to, factor);
  for (int64_t i = 0; i < n; ++i)
    Widen(dtype, from + i * stride * SizeOf(dtype), 1, to + i, factor);
}

HWY_MAYBE_UNUSED static void WriteFloats(DType dtype, const float* from, int64_t stride, int64_t n,
                                         char* to) {
  if (stride == 1) return Narrow(dtype, from, n, to);
  for (int64_t i = 0; i < n; ++i) Narrow(dtype, from + i, 1, to + i * stride * SizeOf(dtype));
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
