// What attend makes of scores, forward and backward alike: the soft cap, terms, and phi of a
// weighting without softmax. Functions on vectors.
#if defined(ATTND_CPU_WEIGHTING_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_WEIGHTING_INL_H_
#undef ATTND_CPU_WEIGHTING_INL_H_
#else
#define ATTND_CPU_WEIGHTING_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/cpu/attend/attend_tile.h"
#include "kernels/cpu/simd/feature_map-inl.h"
#include "kernels/cpu/simd/gemm-inl.h"
#include "kernels/cpu/simd/math-inl.h"
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

// x = cap tanh(t / cap) with the factors 1 / cap and cap, and dx / dt.
struct Capped {
  VF x, slope;
};
HWY_INLINE Capped WithCap(VF t, VF inverse, VF factor) {
  const DF d;
  const VF tanh = Tanh(d, hn::Mul(t, inverse));
  return {hn::Mul(factor, tanh), hn::NegMulAdd(tanh, tanh, hn::Set(d, 1.0f))};
}

// Score s with a bias: -inf hides the pair, whatever s is; finite numbers have a finite sum.
HWY_INLINE VF WithBias(VF s, VF bias) {
  const DF d;
  const VF hidden = hn::Set(d, -std::numeric_limits<float>::infinity());
  const VF most = hn::Set(d, std::numeric_limits<float>::max());
  const VF sum = hn::Add(s, bias);
  const VF cut = hn::Min(most, hn::Max(hn::Neg(most), sum));
  const VF score = hn::IfThenElse(hn::And(hn::IsFinite(s), hn::IsFinite(bias)), cut, sum);
  return hn::IfThenElse(hn::Eq(bias, hidden), hidden, score);
}

// Score s with an entry of a table.
HWY_INLINE float WithLabelled(float s, float entry, float factor) {
  const hn::CappedTag<float, 1> d;
  return hn::GetLane(hn::MulAdd(hn::Set(d, entry), hn::Set(d, factor), hn::Set(d, s)));
}

// A position as AlibiDistance takes it: cut to +-2^30, and what was cut off. Key rows are below
// 2^30.
struct CutPosition {
  int32_t cut;
  float beyond;

  explicit CutPosition(int64_t position) {
    constexpr int64_t kFar = int64_t{1} << 30;
    const int64_t near = std::clamp(position, -kFar, kFar);
    cut = static_cast<int32_t>(near);
    beyond = static_cast<float>(std::abs(position - near));
  }
};
// |p_i - p_j| of a query at `position`, `beyond` and a key row.
using VI = hn::Vec<hn::RebindToSigned<DF>>;
HWY_INLINE VF AlibiDistance(VI position, VI row, VF beyond) {
  return hn::Add(hn::Abs(hn::ConvertTo(DF(), hn::Sub(position, row))), beyond);
}
HWY_INLINE VF WithAlibi(VF s, VF distance, VF slope) { return hn::NegMulAdd(slope, distance, s); }

// Calls f(constant of `weighting`), so that f chooses at compile time. kSoftmax counts as identity.
template <class F>
HWY_INLINE void WithWeighting(Weighting weighting, const F& f) {
  switch (weighting) {
    case Weighting::kRelu:
      return f(std::integral_constant<Weighting, Weighting::kRelu>());
    case Weighting::kReluSquared:
      return f(std::integral_constant<Weighting, Weighting::kReluSquared>());
    case Weighting::kGelu:
      return f(std::integral_constant<Weighting, Weighting::kGelu>());
    case Weighting::kSoftplus:
      return f(std::integral_constant<Weighting, Weighting::kSoftplus>());
    case Weighting::kRelu6:
      return f(std::integral_constant<Weighting, Weighting::kRelu6>());
    case Weighting::kSigmoid:
      return f(std::integral_constant<Weighting, Weighting::kSigmoid>());
    case Weighting::kSoftmax:
    case Weighting::kIdentity:
      return f(std::integral_constant<Weighting, Weighting::kIdentity>());
  }
}

// phi(s) of a weighting; NaN stays NaN.
template <Weighting kWeighting>
HWY_INLINE VF Phi(VF s) {
  const DF d;
  // Max and Min return their second argument when one is NaN.
  [[maybe_unused]] const VF relu = hn::Max(hn::Zero(d), s);
  if constexpr (kWeighting == Weighting::kRelu) {
    return relu;
  } else if constexpr (kWeighting == Weighting::kReluSquared) {
    return hn::Mul(relu, relu);
  } else if constexpr (kWeighting == Weighting::kGelu) {
    return Feature<FeatureMap::kGelu>(d, s, hn::Zero(d));
  } else if constexpr (kWeighting == Weighting::kSoftplus) {
    return Softplus(d, s);
  } else if constexpr (kWeighting == Weighting::kRelu6) {
    return hn::Min(hn::Set(d, 6.0f), relu);
  } else if constexpr (kWeighting == Weighting::kSigmoid) {
    return Sigmoid(d, s);
  } else {
    return s;
  }
}

// phi'(s), with phi = Phi(s) at hand.
template <Weighting kWeighting>
HWY_INLINE VF PhiSlope(VF s, VF phi) {
  const DF d;
  if constexpr (kWeighting == Weighting::kRelu) {
    return Derivative<FeatureMap::kRelu>(d, s, phi);
  } else if constexpr (kWeighting == Weighting::kReluSquared) {
    return Derivative<FeatureMap::kReluSquared>(d, s, phi);
  } else if constexpr (kWeighting == Weighting::kGelu) {
    return Derivative<FeatureMap::kGelu>(d, s, phi);
  } else if constexpr (kWeighting == Weighting::kSoftplus) {
    return Sigmoid(d, s);
  } else if constexpr (kWeighting == Weighting::kRelu6) {
    const auto flat = hn::Or(hn::Le(s, hn::Zero(d)), hn::Ge(s, hn::Set(d, 6.0f)));
    return hn::IfThenZeroElse(flat, hn::IfThenElse(hn::IsNaN(s), s, hn::Set(d, 1.0f)));
  } else if constexpr (kWeighting == Weighting::kSigmoid) {
    return Derivative<FeatureMap::kSigmoid>(d, s, phi);
  } else {
    return hn::Set(d, 1.0f);
  }
}

// phi of a weighting that is known at run time. REQUIRES: not kSoftmax.
HWY_INLINE VF Weight(Weighting weighting, VF s) {
  VF phi = s;
  WithWeighting(weighting, [&](auto constant) HWY_ATTR { phi = Phi<constant()>(s); });
  return phi;
}

// phi and phi' of a row of n scores, a multiple of kLanes. REQUIRES: not kSoftmax.
HWY_NOINLINE HWY_MAYBE_UNUSED static void PhiRow(Weighting weighting, const float* s, int64_t n,
                                                 float* phi, float* slope) {
  WithWeighting(weighting, [&](auto constant) HWY_ATTR {
    const DF d;
    for (int64_t x = 0; x < n; x += kLanes) {
      const VF score = hn::LoadU(d, s + x), weight = Phi<constant()>(score);
      hn::StoreU(weight, d, phi + x);
      hn::StoreU(PhiSlope<constant()>(score, weight), d, slope + x);
    }
  });
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
