// How attend turns scores into weights without softmax, and the soft cap: functions on vectors.
#if defined(ATTND_CPU_WEIGHTING_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_WEIGHTING_INL_H_
#undef ATTND_CPU_WEIGHTING_INL_H_
#else
#define ATTND_CPU_WEIGHTING_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/simd/feature_map-inl.h"
#include "kernels/device/device.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Within 3 ulp; NaN stays NaN. Near 0 the polynomial of Cephes' tanhf, else (1 - e) / (1 + e) with
// e = exp(-2 |x|).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Tanh(D d, V x) {
  const V one = hn::Set(d, 1.0f), z = hn::Mul(x, x), size = hn::Abs(x);
  V p = hn::Set(d, -5.70498872745e-3f);
  p = hn::MulAdd(p, z, hn::Set(d, 2.06390887954e-2f));
  p = hn::MulAdd(p, z, hn::Set(d, -5.37397155531e-2f));
  p = hn::MulAdd(p, z, hn::Set(d, 1.33314422036e-1f));
  p = hn::MulAdd(p, z, hn::Set(d, -3.33332819422e-1f));
  p = hn::MulAdd(hn::Mul(p, z), x, x);
  const V e = ExpNegative(d, hn::Mul(hn::Set(d, -2.0f), size));
  const V far = hn::CopySign(hn::Div(hn::Sub(one, e), hn::Add(one, e)), x);
  return hn::IfThenElse(hn::Gt(size, hn::Set(d, 0.625f)), far, p);
}

// log(1 + e^x) = max(x, 0) + log1p(e), e = exp(-|x|) <= 1, log1p(e) = 2 atanh(e / (2 + e)); the
// polynomial interpolates atanh(z) / z at Chebyshev nodes on z <= 1/3, relative error 4e-10.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Softplus(D d, V x) {
  const V e = ExpNegative(d, hn::Neg(hn::Abs(x)));
  const V z = hn::Div(e, hn::Add(e, hn::Set(d, 2.0f))), w = hn::Mul(z, z);
  V p = hn::Set(d, 0.11620366f);
  p = hn::MulAdd(p, w, hn::Set(d, 0.10851447f));
  p = hn::MulAdd(p, w, hn::Set(d, 0.14296309f));
  p = hn::MulAdd(p, w, hn::Set(d, 0.1999985f));
  p = hn::MulAdd(p, w, hn::Set(d, 0.33333334f));
  const V twice = hn::Add(z, z);
  // Max returns its second argument when one is NaN.
  return hn::Add(hn::Max(hn::Zero(d), x), hn::MulAdd(hn::Mul(p, w), twice, twice));
}

// phi of `weighting`; NaN stays NaN. REQUIRES: not kSoftmax.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Weight(D d, Weighting weighting, V s) {
  const V zero = hn::Zero(d);
  const V relu = hn::Max(zero, s);
  switch (weighting) {
    case Weighting::kRelu:
      return relu;
    case Weighting::kReluSquared:
      return hn::Mul(relu, relu);
    case Weighting::kGelu:
      return hn::Mul(s, NormalCdf(d, s));
    case Weighting::kSoftplus:
      return Softplus(d, s);
    case Weighting::kRelu6:
      return hn::Min(hn::Set(d, 6.0f), relu);
    case Weighting::kSigmoid:
      return Sigmoid(d, s);
    case Weighting::kSoftmax:
    case Weighting::kIdentity:
      break;
  }
  return s;
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
