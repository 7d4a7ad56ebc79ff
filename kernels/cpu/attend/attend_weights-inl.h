// Scores to weights with their derivatives, for the backward of attend with terms.
#if defined(ATTND_CPU_ATTEND_WEIGHTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_ATTEND_WEIGHTS_INL_H_
#undef ATTND_CPU_ATTEND_WEIGHTS_INL_H_
#else
#define ATTND_CPU_ATTEND_WEIGHTS_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/attend/weighting-inl.h"
#include "kernels/cpu/simd/feature_map-inl.h"
#include "kernels/cpu/simd/gemm-inl.h"
#include "kernels/device/device.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace attend_internal {

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
        *weight = Softplus(DF(), x);
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
