// Scores to weights with their derivatives, for the backward of attend with terms.
#if defined(ATTND_CPU_ATTEND_WEIGHTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_ATTEND_WEIGHTS_INL_H_
#undef ATTND_CPU_ATTEND_WEIGHTS_INL_H_
#else
#define ATTND_CPU_ATTEND_WEIGHTS_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/simd/feature_map-inl.h"
#include "kernels/cpu/simd/gemm-inl.h"
#include "kernels/device/device.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace attend_internal {

// A few ulp: an odd polynomial where 1 - e^(-2|x|) would cancel (Cephes' tanhf).
HWY_INLINE VF Tanh(VF x) {
  const DF d;
  const VF one = hn::Set(d, 1.0f), size = hn::Abs(x), square = hn::Mul(x, x);
  VF p = hn::Set(d, -5.70498872745e-3f);
  p = hn::MulAdd(p, square, hn::Set(d, 2.06390887954e-2f));
  p = hn::MulAdd(p, square, hn::Set(d, -5.37397155531e-2f));
  p = hn::MulAdd(p, square, hn::Set(d, 1.33314422036e-1f));
  p = hn::MulAdd(p, square, hn::Set(d, -3.33332819422e-1f));
  const VF small = hn::MulAdd(hn::Mul(p, square), x, x);
  const VF e = ExpNegative(d, hn::Mul(size, hn::Set(d, -2.0f)));
  const VF large = hn::CopySign(hn::Div(hn::Sub(one, e), hn::Add(one, e)), x);
  return hn::IfThenElse(hn::Ge(size, hn::Set(d, 0.625f)), large, small);
}

// log(1 + z) for z in [0, 1]: 2 atanh(w), w = z / (2 + z) <= 1/3, to w^17.
HWY_INLINE VF LogOnePlus(VF z) {
  const DF d;
  const VF w = hn::Div(z, hn::Add(z, hn::Set(d, 2.0f))), square = hn::Mul(w, w);
  VF p = hn::Set(d, 2.0f / 17);
  for (int n = 15; n >= 3; n -= 2) {
    p = hn::MulAdd(p, square, hn::Set(d, 2.0f / static_cast<float>(n)));
  }
  return hn::Mul(w, hn::MulAdd(p, square, hn::Set(d, 2.0f)));
}

HWY_INLINE VF Softplus(VF x) {
  const DF d;
  const VF rest = LogOnePlus(ExpNegative(d, hn::Neg(hn::Abs(x))));
  return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), rest, hn::Add(x, rest));
}

// phi and phi' of a row of n scores, a multiple of kLanes.
template <class F>
HWY_INLINE void EachVector(const float* s, int64_t n, float* phi, float* slope, const F& f) {
  const DF d;
  for (int64_t x = 0; x < n; x += kLanes) {
    VF weight, derivative;
    f(hn::LoadU(d, s + x), &weight, &derivative);
    hn::StoreU(weight, d, phi + x);
    hn::StoreU(derivative, d, slope + x);
  }
}

template <FeatureMap kMap>
HWY_INLINE void MapRow(const float* s, int64_t n, float* phi, float* slope) {
  EachVector(s, n, phi, slope, [](VF x, VF* weight, VF* derivative) HWY_ATTR {
    const DF d;
    *weight = Feature<kMap>(d, x, hn::Zero(d));
    *derivative = Derivative<kMap>(d, x, *weight);
  });
}

}  // namespace attend_internal

// REQUIRES: weighting is not softmax.
HWY_NOINLINE HWY_MAYBE_UNUSED static void PhiRow(Weighting weighting, const float* s, int64_t n,
                                                 float* phi, float* slope) {
  using namespace attend_internal;
  switch (weighting) {
    case Weighting::kSoftmax:
    case Weighting::kIdentity:
      return MapRow<FeatureMap::kIdentity>(s, n, phi, slope);
    case Weighting::kRelu:
      return MapRow<FeatureMap::kRelu>(s, n, phi, slope);
    case Weighting::kReluSquared:
      return MapRow<FeatureMap::kReluSquared>(s, n, phi, slope);
    case Weighting::kGelu:
      return MapRow<FeatureMap::kGelu>(s, n, phi, slope);
    case Weighting::kSigmoid:
      return MapRow<FeatureMap::kSigmoid>(s, n, phi, slope);
    case Weighting::kSoftplus:
      return EachVector(s, n, phi, slope, [](VF x, VF* weight, VF* derivative) HWY_ATTR {
        *weight = Softplus(x);
        *derivative = Sigmoid(DF(), x);
      });
    case Weighting::kRelu6:
      return EachVector(s, n, phi, slope, [](VF x, VF* weight, VF* derivative) HWY_ATTR {
        const DF d;
        const VF zero = hn::Zero(d), six = hn::Set(d, 6.0f);
        const auto below = hn::Le(x, zero), above = hn::Ge(x, six);
        *weight = hn::IfThenElse(below, zero, hn::IfThenElse(above, six, x));
        const VF one = hn::IfThenElse(hn::IsNaN(x), x, hn::Set(d, 1.0f));
        *derivative = hn::IfThenZeroElse(hn::Or(below, above), one);
      });
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
