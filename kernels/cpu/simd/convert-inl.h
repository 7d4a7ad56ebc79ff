// Between storage (float32, float16, bfloat16, any alignment) and float32; transposition.
#if defined(ATTND_CPU_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_CONVERT_INL_H_
#undef ATTND_CPU_CONVERT_INL_H_
#else
#define ATTND_CPU_CONVERT_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/core/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace convert_internal {
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
using DU = hn::RebindToUnsigned<D>;
using VU = hn::Vec<DU>;
using DHalf = hn::Rebind<uint16_t, D>;
constexpr int64_t kStep = HWY_LANES(float);

// Halves in the low part of each lane, without F16C. Subnormals are counted in units of 2^-24:
// flush-to-zero cannot hit them.
HWY_MAYBE_UNUSED HWY_INLINE V FromHalf(VU h) {
  const D d;
  const DU du;
  const VU magnitude = hn::And(h, hn::Set(du, 0x7FFFu));
  const VU bias = hn::Set(du, 112u << 23);
  const VU normal = hn::Add(hn::ShiftLeft<13>(magnitude), bias);
  const V small = hn::Mul(hn::ConvertTo(d, hn::BitCast(hn::RebindToSigned<D>(), magnitude)),
                          hn::Set(d, 5.9604644775390625e-8f));
  VU bits = hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, 0x400u)), hn::BitCast(du, small), normal);
  bits = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x7BFFu)), hn::Add(normal, bias), bits);
  return hn::BitCast(d, hn::Or(bits, hn::ShiftLeft<16>(hn::And(h, hn::Set(du, 0x8000u)))));
}

// Round to nearest even; the result is in the low half of each lane.
HWY_INLINE VU ToBrain(V x) {
  const DU du;
  const VU bits = hn::BitCast(du, x);
  const VU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const VU rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFFu))));
  const VU nan = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40u));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), nan, rounded);
}

HWY_INLINE VU ToHalf(V x) {
  const DU du;
  const VU bits = hn::BitCast(du, x);
  const VU sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000u));
  const VU magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFFu));
  const VU odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1u));
  const VU normal = hn::ShiftRight<13>(
      hn::Sub(hn::Add(magnitude, hn::Add(odd, hn::Set(du, 0xFFFu))), hn::Set(du, 112u << 23)));
  // Adding 0.5, whose unit in the last place is 2^-24, rounds to the grid of subnormal halves.
  const D d;
  const V half = hn::Set(d, 0.5f);
  const VU small =
      hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), half)), hn::BitCast(du, half));
  VU out = hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, 0x38800000u)), small, normal);
  out = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x477FFFFFu)), hn::Set(du, 0x7C00u), out);
  out = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x7F800000u)), hn::Set(du, 0x7E00u), out);
  return hn::Or(out, sign);
}

HWY_INLINE V WidenVector(DType dtype, const uint16_t* from) {
  const D d;
  const DU du;
  const auto stored = hn::LoadU(DHalf(), from);
  const VU bits = hn::PromoteTo(du, stored);
  if (dtype == DType::kBF16) return hn::BitCast(d, hn::ShiftLeft<16>(bits));
#if HWY_TARGET == HWY_SSE4
  return FromHalf(bits);
#else
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), stored));
#endif
}

HWY_INLINE void NarrowVector(DType dtype, V x, uint16_t* to) {
  const VU bits = dtype == DType::kBF16 ? ToBrain(x) : ToHalf(x);
  hn::StoreU(hn::DemoteTo(DHalf(), hn::BitCast(hn::RebindToSigned<D>(), bits)), DHalf(), to);
}
}  // namespace convert_internal

// n contiguous elements to float32, times `factor`. Exact with factor 1. Reads and writes nothing
// beyond n.
HWY_NOINLINE HWY_MAYBE_UNUSED static void Widen(DType dtype, const void* from, int64_t n, float* to,
                                                float factor = 1.0f) {
  using namespace convert_internal;
  const D d;
  const V scale = hn::Set(d, factor);
  int64_t i = 0;
  if (dtype == DType::kF32) {
    const float* source = static_cast<const float*>(from);
    for (; i + kStep <= n; i += kStep) {
      hn::StoreU(hn::Mul(scale, hn::LoadU(d, source + i)), d, to + i);
    }
    for (; i < n; ++i) to[i] = factor * source[i];
    return;
  }
  const uint16_t* source = static_cast<const uint16_t*>(from);
  for (; i + kStep <= n; i += kStep) {
    hn::StoreU(hn::Mul(scale, WidenVector(dtype, source + i)), d, to + i);
  }
  if (i < n) {
    uint16_t rest[kStep] = {};
    float wide[kStep];
    std::memcpy(rest, source + i, (n - i) * sizeof(uint16_t));
    hn::StoreU(hn::Mul(scale, WidenVector(dtype, rest)), d, wide);
    std::memcpy(to + i, wide, (n - i) * sizeof(float));
  }
}

// n float32, times `factor`, to contiguous storage: round to nearest even, overflow to infinity,
// NaN stays NaN. `from` and `to` may be the same float32 array.
HWY_NOINLINE HWY_MAYBE_UNUSED static void Narrow(DType dtype, const float* from, int64_t n,
                                                 void* to, float factor = 1.0f) {
  using namespace convert_internal;
  const D d;
  const V scale = hn::Set(d, factor);
  if (dtype == DType::kF32) {
    Widen(dtype, from, n, static_cast<float*>(to), factor);
    return;
  }
  uint16_t* target = static_cast<uint16_t*>(to);
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    NarrowVector(dtype, hn::Mul(scale, hn::LoadU(d, from + i)), target + i);
  }
  if (i < n) {
    float wide[kStep] = {};
    uint16_t rest[kStep];
    std::memcpy(wide, from + i, (n - i) * sizeof(float));
    NarrowVector(dtype, hn::Mul(scale, hn::LoadU(d, wide)), rest);
    std::memcpy(target + i, rest, (n - i) * sizeof(uint16_t));
  }
}

// Four consecutive floats of each of the rows 0, 4, 8, ...: one row a 128-bit block of a vector.
HWY_INLINE convert_internal::V LoadBlocks(const float* from, int64_t stride) {
  const auto row = [&](int64_t i) HWY_ATTR { return _mm_loadu_ps(from + 4 * i * stride); };
#if HWY_TARGET == HWY_AVX3
  __m512 v = _mm512_castps128_ps512(row(0));
  v = _mm512_insertf32x4(v, row(1), 1);
  v = _mm512_insertf32x4(v, row(2), 2);
  return convert_internal::V{_mm512_insertf32x4(v, row(3), 3)};
#elif HWY_TARGET == HWY_AVX2
  return convert_internal::V{_mm256_insertf128_ps(_mm256_castps128_ps256(row(0)), row(1), 1)};
#else
  return convert_internal::V{row(0)};
#endif
}

// to[c][r] = from[r][c]; rows `from_stride` and `to_stride` floats apart. A vector of rows at a
// time: what is written are whole vectors.
HWY_NOINLINE HWY_MAYBE_UNUSED static void Transpose(const float* from, int64_t from_stride,
                                                    int64_t rows, int64_t columns, float* to,
                                                    int64_t to_stride) {
  using namespace convert_internal;
  const D d;
  const hn::RepartitionToWide<D> dd;
  const auto pair = [&](V v) HWY_ATTR { return hn::BitCast(dd, v); };
  int64_t r = 0;
  for (; r + kStep <= rows; r += kStep) {
    const float* f = from + r * from_stride;
    int64_t c = 0;
    for (; c + 4 <= columns; c += 4) {
      const V r0 = LoadBlocks(f + c, from_stride),
              r1 = LoadBlocks(f + from_stride + c, from_stride);
      const V r2 = LoadBlocks(f + 2 * from_stride + c, from_stride);
      const V r3 = LoadBlocks(f + 3 * from_stride + c, from_stride);
      const auto low01 = pair(hn::InterleaveLower(d, r0, r1));
      const auto low23 = pair(hn::InterleaveLower(d, r2, r3));
      const auto high01 = pair(hn::InterleaveUpper(d, r0, r1));
      const auto high23 = pair(hn::InterleaveUpper(d, r2, r3));
      float* t = to + c * to_stride + r;
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dd, low01, low23)), d, t);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dd, low01, low23)), d, t + to_stride);
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dd, high01, high23)), d, t + 2 * to_stride);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dd, high01, high23)), d, t + 3 * to_stride);
    }
    for (; c < columns; ++c) {
      for (int64_t i = 0; i < kStep; ++i) to[c * to_stride + r + i] = f[i * from_stride + c];
    }
  }
  for (; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) to[c * to_stride + r] = from[r * from_stride + c];
  }
}

// Whether any of n floats is NaN or infinite.
HWY_NOINLINE HWY_MAYBE_UNUSED static bool HasNonFinite(const float* from, int64_t n) {
  using namespace convert_internal;
  const D d;
  // x - x is 0 for finite x, else NaN; NaN survives the sum.
  V sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    const V x = hn::LoadU(d, from + i);
    sum = hn::Add(sum, hn::Sub(x, x));
  }
  bool found = !hn::AllFalse(d, hn::IsNaN(sum));
  for (; i < n; ++i) found = found || from[i] - from[i] != 0.0f;
  return found;
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
