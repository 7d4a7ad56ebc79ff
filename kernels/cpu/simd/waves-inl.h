// Sine and cosine of vectors of float32 together.
#if defined(ATTND_CPU_WAVES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_WAVES_INL_H_
#undef ATTND_CPU_WAVES_INL_H_
#else
#define ATTND_CPU_WAVES_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/simd/wide_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class V>
struct SinCosOf {
  V sin, cos;
};

// In float64, for arguments of any size.
template <class D, class V = hn::Vec<D>>
HWY_NOINLINE SinCosOf<V> WideSinCos(D d, V x) {
  const wide::D w;
  const hn::Rebind<float, wide::D> half;
  HWY_ALIGN float lanes[HWY_LANES(float)], sin[HWY_LANES(float)], cos[HWY_LANES(float)];
  hn::Store(x, d, lanes);
  for (size_t i = 0; i < hn::Lanes(d); i += hn::Lanes(w)) {
    const auto angle = hn::PromoteTo(w, hn::LoadU(half, lanes + i));
    hn::StoreU(hn::DemoteTo(half, wide::SinOf(angle, 0)), half, sin + i);
    hn::StoreU(hn::DemoteTo(half, wide::SinOf(angle, 1)), half, cos + i);
  }
  return {hn::Load(d, sin), hn::Load(d, cos)};
}

// Within 1.2e-7 of the true values, of which none is above 1. NaN and infinities give NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE SinCosOf<V> SinCos(D d, V x) {
  const hn::RebindToSigned<D> di;
  // Up to here n has 12 bits, so that n times the first two parts of pi / 2 is exact.
  if (HWY_UNLIKELY(!hn::AllTrue(d, hn::Le(hn::Abs(x), hn::Set(d, 4096.0f))))) {
    return WideSinCos(d, x);
  }
  const V n = hn::Round(hn::Mul(x, hn::Set(d, 0.636619772367581343f)));
  V r = hn::NegMulAdd(n, hn::Set(d, 1.5703125f), x);
  r = hn::NegMulAdd(n, hn::Set(d, 4.837512969970703125e-4f), r);
  r = hn::NegMulAdd(n, hn::Set(d, 7.54978995489188216e-8f), r);
  // sin(r) and cos(r) for |r| <= pi / 4, minimax: 2^-26 (Moshier, Cephes, sinf).
  const V y = hn::Mul(r, r);
  V s = hn::MulAdd(hn::Set(d, -1.9515295891e-4f), y, hn::Set(d, 8.3321608736e-3f));
  s = hn::MulAdd(s, y, hn::Set(d, -1.6666654611e-1f));
  s = hn::MulAdd(hn::Mul(s, y), r, r);
  V c = hn::MulAdd(hn::Set(d, 2.443315711809948e-5f), y, hn::Set(d, -1.388731625493765e-3f));
  c = hn::MulAdd(c, y, hn::Set(d, 4.166664568298827e-2f));
  c = hn::MulAdd(hn::Mul(c, y), y, hn::NegMulAdd(hn::Set(d, 0.5f), y, hn::Set(d, 1.0f)));
  // Odd quarters swap the two; 2 and 3 turn the sign of the sine, 1 and 2 that of the cosine.
  const auto quarter = hn::ConvertTo(di, n);
  const auto one = hn::Set(di, 1), two = hn::Set(di, 2);
  const auto is_odd = hn::RebindMask(d, hn::Eq(hn::And(quarter, one), one));
  const auto sign_of_sin = hn::ShiftLeft<30>(hn::And(quarter, two));
  const auto sign_of_cos = hn::ShiftLeft<30>(hn::And(hn::Add(quarter, one), two));
  return {hn::Xor(hn::IfThenElse(is_odd, c, s), hn::BitCast(d, sign_of_sin)),
          hn::Xor(hn::IfThenElse(is_odd, s, c), hn::BitCast(d, sign_of_cos))};
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
