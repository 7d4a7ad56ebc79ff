// Elementary functions on vectors of float32, one build per instruction set.
#if defined(ATTND_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_MATH_INL_H_
#undef ATTND_CPU_MATH_INL_H_
#else
#define ATTND_CPU_MATH_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 2^f for f in [-0.5, 0.5], exactly 1 at 0: minimax for the relative error with the constant term
// 1, 9.2e-8.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp2Fraction(D d, V f) {
  V p = hn::Set(d, 0.0013264727252542095f);
  p = hn::MulAdd(p, f, hn::Set(d, 0.009671512785773353f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.0555073374447137f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.24022242083111872f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.6931469775976775f));
  return hn::MulAdd(p, f, hn::Set(d, 1.0f));
}

// 2^x for x <= 127.5: within 3 ULP of the true value; exactly 1 at 0 and exactly 0 below -126
// (denormals would cost 20 times, and a masked score of -inf must weigh nothing). NaN stays NaN.
// REQUIRES: denormals are flushed to zero, as in the threads of a pool.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp2Small(D d, V x) {
#if HWY_TARGET == HWY_AVX3
  // x minus the nearest integer in one instruction, 0 for -inf, and p 2^n in another: two thirds of
  // the instructions of other targets.
  const V f{_mm512_reduce_ps(x.raw, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  return V{_mm512_scalef_ps(Exp2Fraction(d, f).raw, hn::Sub(x, f).raw)};
#else
  const hn::RebindToSigned<D> di;
  // Adding 1.5 * 2^23 rounds to the nearest integer n; the 127 puts the biased exponent of 2^n into
  // the low bits of the sum.
  const V magic = hn::Set(d, 12582912.0f + 127.0f);
  const V sum = hn::Add(x, magic);
  const V f = hn::Sub(x, hn::Sub(sum, magic));  // [-0.5, 0.5]
  // A product, not an addition to the exponent: whatever the bits of a NaN, it stays one.
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, sum)));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -126.0f)), hn::Mul(Exp2Fraction(d, f), power));
#endif
}

// As Exp2Small for every x: +inf from 128 on.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp2(D d, V x) {
  // Min returns its second argument when one is NaN.
  return Exp2Small(d, hn::Min(hn::Set(d, 128.0f), x));
}

// e^x for x <= 88, as weights of a softmax need it: an error of 3 ULP and of |x| 2^-24 of the
// result (of 1, less than 2^-25 for x <= 0), for as many instructions as Exp2Small, or one more.
// Exactly 1 at 0 and exactly 0 below -87.4. NaN stays NaN. REQUIRES: as Exp2Small.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpWeight(D d, V x) {
  const V log2_e = hn::Set(d, 1.44269504088896341f);
#if HWY_TARGET == HWY_AVX2
  const hn::RebindToSigned<D> di;
  const V magic = hn::Set(d, 12582912.0f + 127.0f);
  const V sum = hn::MulAdd(x, log2_e, magic);
  const V f = hn::MulSub(x, log2_e, hn::Sub(sum, magic));
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, sum)));
  const V least = hn::Set(d, -87.3365447505531f);  // -126 log(2)
  return hn::IfThenZeroElse(hn::Lt(x, least), hn::Mul(Exp2Fraction(d, f), power));
#else
  return Exp2Small(d, hn::Mul(x, log2_e));
#endif
}

// e^x for x <= 88: within 3 ULP of the true value, however small it is; exactly 1 at 0 and exactly
// 0 below -88. NaN stays NaN. REQUIRES: denormals are flushed to zero, as in the threads of a pool.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpSmall(D d, V x) {
  // Max returns its second argument when one is NaN.
  x = hn::Max(hn::Set(d, -104.0f), x);
  const V log2_e = hn::Set(d, 1.44269504088896341f);
  const V n = hn::Round(hn::Mul(x, log2_e));
  // ln 2 in two parts: n times the first, which has 10 bits, is exact.
  V f = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  f = hn::Mul(hn::MulAdd(n, hn::Set(d, 2.12194440054690583e-4f), f), log2_e);
  const V p = Exp2Fraction(d, f);
#if HWY_TARGET == HWY_AVX3
  return V{_mm512_scalef_ps(p.raw, n.raw)};
#else
  const hn::RebindToSigned<D> di;
  const auto exponent = hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127));
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(exponent));
  return hn::IfThenZeroElse(hn::Lt(n, hn::Set(d, -126.0f)), hn::Mul(p, power));
#endif
}

// Finite x between low and high; infinities and NaN as they are.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V CutFinite(D d, V x, float low, float high) {
  // Max and Min return their second argument when one is NaN.
  const V cut = hn::Min(hn::Set(d, high), hn::Max(hn::Set(d, low), x));
  return hn::IfThenElse(hn::IsInf(x), x, cut);
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
