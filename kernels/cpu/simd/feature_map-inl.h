// Elementwise feature maps and their derivatives, on vectors. Relative error of a few ulp wherever
// the result is a normal float, also where the textbook form cancels (elu + 1, gelu, 1 - sigmoid).
// The map is a template argument, chosen once per tile.
#if defined(ATTND_CPU_FEATURE_MAP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_FEATURE_MAP_INL_H_
#undef ATTND_CPU_FEATURE_MAP_INL_H_
#else
#define ATTND_CPU_FEATURE_MAP_INL_H_
#endif

#include <type_traits>

#include "hwy/highway.h"
#include "kernels/device/device.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// e^x for x <= 0, to 2 ulp; 0 below -87.7, NaN for NaN. Cody-Waite reduction by ln 2 in two parts,
// then the polynomial of Cephes' expf. For x > 0 the result is meaningless but harmless.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpNegative(D d, V x) {
  const hn::RebindToSigned<D> di;
  // Adding 1.5 * 2^23 rounds to an integer n; 127 more, and the low bits are the exponent of 2^n.
  const V magic = hn::Set(d, 12582912.0f + 127.0f);
  // Max returns its second argument when one is NaN.
  const V t = hn::Max(hn::Set(d, -88.0f), x);
  const V sum = hn::MulAdd(t, hn::Set(d, 1.44269504f), magic);
  const V n = hn::Sub(sum, magic);
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), t);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  V p = hn::Set(d, 1.9875691500e-4f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1f));
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(d, 1.0f));
  return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, sum))));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Sigmoid(D d, V x) {
  const V one = hn::Set(d, 1.f);
  const V e = ExpNegative(d, hn::Neg(hn::Abs(x)));
  const V top = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one);
  return hn::Div(top, hn::Add(one, e));
}

// e^(-x^2 / 2). x = high + low with a square of `high` that is exact, since a rounded square would
// cost x^2 / 2 times the precision.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V HalfSquareExp(D d, V x) {
  const V y = hn::Min(hn::Abs(x), hn::Set(d, 14.8f)), minus_half = hn::Set(d, -0.5f);
  const V high = hn::And(y, hn::BitCast(d, hn::Set(hn::RebindToUnsigned<D>(), 0xFFFFF000u)));
  const V rest = hn::Mul(hn::Sub(y, high), hn::Add(y, high));
  return hn::Mul(ExpNegative(d, hn::Mul(minus_half, hn::Mul(high, high))),
                 ExpNegative(d, hn::Mul(minus_half, rest)));
}

// Distribution function of the standard normal. erfc(z) = e^(-z^2) t Q(t), t = 1 / (1 + 0.3 z):
// Q interpolates at Chebyshev nodes on z in [0, 9.5], relative error 2.4e-8.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V NormalCdf(D d, V x) {
  const V one = hn::Set(d, 1.f), half = hn::Set(d, 0.5f);
  const V z = hn::Min(hn::Mul(hn::Abs(x), hn::Set(d, 0.707106781f)), hn::Set(d, 10.5f));
  const V t = hn::Div(one, hn::MulAdd(z, hn::Set(d, 0.3f), one));
  V q = hn::Set(d, -0.130492816f);
  q = hn::MulAdd(q, t, hn::Set(d, 0.490571598f));
  q = hn::MulAdd(q, t, hn::Set(d, -0.523314656f));
  q = hn::MulAdd(q, t, hn::Set(d, 0.561246202f));
  q = hn::MulAdd(q, t, hn::Set(d, -0.104712141f));
  q = hn::MulAdd(q, t, hn::Set(d, 0.219567115f));
  q = hn::MulAdd(q, t, hn::Set(d, 0.147045419f));
  q = hn::MulAdd(q, t, hn::Set(d, 0.170914156f));
  q = hn::MulAdd(q, t, hn::Set(d, 0.169175103f));
  const V e = HalfSquareExp(d, x);
  const V tail = hn::Mul(hn::Mul(half, hn::Mul(t, q)), e);
  const V cdf = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(one, tail));
  return hn::IfThenElse(hn::IsNaN(x), x, cdf);
}

// Calls f with a type whose `value` is the constant `map`.
template <class F>
HWY_INLINE void WithMap(FeatureMap map, const F& f) {
  const auto call = [&]<FeatureMap kMap>() { f(std::integral_constant<FeatureMap, kMap>()); };
  switch (map) {
    case FeatureMap::kEluPlusOne:
      return call.template operator()<FeatureMap::kEluPlusOne>();
    case FeatureMap::kRelu:
      return call.template operator()<FeatureMap::kRelu>();
    case FeatureMap::kReluSquared:
      return call.template operator()<FeatureMap::kReluSquared>();
    case FeatureMap::kSquared:
      return call.template operator()<FeatureMap::kSquared>();
    case FeatureMap::kAbs:
      return call.template operator()<FeatureMap::kAbs>();
    case FeatureMap::kIdentity:
      return call.template operator()<FeatureMap::kIdentity>();
    case FeatureMap::kExp:
      return call.template operator()<FeatureMap::kExp>();
    case FeatureMap::kSigmoid:
      return call.template operator()<FeatureMap::kSigmoid>();
    case FeatureMap::kSilu:
      return call.template operator()<FeatureMap::kSilu>();
    case FeatureMap::kGelu:
      return call.template operator()<FeatureMap::kGelu>();
  }
}

// phi(x); kExp: e^(x - shift) for shift >= x, `shift` is unused by the others.
template <FeatureMap kMap, class D, class V = hn::Vec<D>>
HWY_INLINE V Feature(D d, V x, [[maybe_unused]] V shift) {
  [[maybe_unused]] const V zero = hn::Zero(d);
  if constexpr (kMap == FeatureMap::kEluPlusOne) {
    return hn::IfThenElse(hn::Gt(x, zero), hn::Add(x, hn::Set(d, 1.f)), ExpNegative(d, x));
  } else if constexpr (kMap == FeatureMap::kRelu) {  // written so that NaN stays NaN
    return hn::IfThenElse(hn::Lt(x, zero), zero, x);
  } else if constexpr (kMap == FeatureMap::kReluSquared) {
    return hn::IfThenElse(hn::Lt(x, zero), zero, hn::Mul(x, x));
  } else if constexpr (kMap == FeatureMap::kSquared) {
    return hn::Mul(x, x);
  } else if constexpr (kMap == FeatureMap::kAbs) {
    return hn::Abs(x);
  } else if constexpr (kMap == FeatureMap::kIdentity) {
    return x;
  } else if constexpr (kMap == FeatureMap::kExp) {
    return ExpNegative(d, hn::Sub(x, shift));
  } else if constexpr (kMap == FeatureMap::kSigmoid) {
    return Sigmoid(d, x);
  } else if constexpr (kMap == FeatureMap::kSilu) {
    // x e^x of x < -87 is a float32 where e^x is none: in halves.
    const V h = ExpNegative(d, hn::Mul(hn::Set(d, -0.5f), hn::Abs(x)));
    const V over = hn::IfThenElse(hn::Lt(x, zero), hn::Mul(hn::Mul(x, h), h), x);
    return hn::Div(over, hn::MulAdd(h, h, hn::Set(d, 1.f)));
  } else if constexpr (kMap == FeatureMap::kGelu) {
    return hn::Mul(x, NormalCdf(d, x));
  }
}

// phi'(x), with phi = Feature(x) at hand (kExp: shifted as there).
template <FeatureMap kMap, class D, class V = hn::Vec<D>>
HWY_INLINE V Derivative(D d, V x, [[maybe_unused]] V phi) {
  [[maybe_unused]] const V zero = hn::Zero(d), one = hn::Set(d, 1.f);
  if constexpr (kMap == FeatureMap::kEluPlusOne) {
    return hn::IfThenElse(hn::Gt(x, zero), one, phi);
  } else if constexpr (kMap == FeatureMap::kRelu) {
    return hn::IfThenElse(hn::Gt(x, zero), one, hn::IfThenElse(hn::IsNaN(x), x, zero));
  } else if constexpr (kMap == FeatureMap::kReluSquared) {
    return hn::IfThenElse(hn::Lt(x, zero), zero, hn::Add(x, x));
  } else if constexpr (kMap == FeatureMap::kSquared) {
    return hn::Add(x, x);
  } else if constexpr (kMap == FeatureMap::kAbs) {
    return hn::IfThenElse(hn::Gt(x, zero), one, hn::IfThenElse(hn::Lt(x, zero), hn::Neg(one), x));
  } else if constexpr (kMap == FeatureMap::kIdentity) {
    return one;
  } else if constexpr (kMap == FeatureMap::kExp) {
    return phi;
  } else if constexpr (kMap == FeatureMap::kSigmoid) {
    return hn::Mul(phi, Sigmoid(d, hn::Neg(x)));
  } else if constexpr (kMap == FeatureMap::kSilu) {
    const V s = Sigmoid(d, x);
    return hn::MulAdd(hn::Mul(x, s), Sigmoid(d, hn::Neg(x)), s);
  } else if constexpr (kMap == FeatureMap::kGelu) {
    const V density = hn::Mul(hn::Set(d, 0.398942280f), HalfSquareExp(d, x));
    return hn::MulAdd(x, density, NormalCdf(d, x));
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
