// Elementary functions in float64 for arguments and results in float32: formulas stay those of the
// textbook, since what they cancel is lost far below float32. Relative error below 1e-9 (most:
// 1e-11), so that rounding to float32 is the only error. NaN stays NaN, infinities give limits.
// Coefficients interpolate at Chebyshev nodes; their relative error stands beside them.
#if defined(ATTND_CPU_WIDE_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_WIDE_MATH_INL_H_
#undef ATTND_CPU_WIDE_MATH_INL_H_
#else
#define ATTND_CPU_WIDE_MATH_INL_H_
#endif

#include <cmath>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE::wide {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<double>;
using V = hn::Vec<D>;
using DU = hn::RebindToUnsigned<D>;
constexpr double kInf = std::numeric_limits<double>::infinity();

HWY_INLINE V Number(double x) { return hn::Set(D(), x); }

// coefficients[0] x^(n-1) + .. + coefficients[n-1].
template <size_t kCount>
HWY_INLINE V Polynomial(V x, const double (&coefficients)[kCount]) {
  V y = Number(coefficients[0]);
#pragma GCC unroll 16
  for (size_t i = 1; i < kCount; ++i) y = hn::MulAdd(y, x, Number(coefficients[i]));
  return y;
}

// e^x = scale (1 + rest).
struct Power {
  V scale, rest;
};

// |x| is cut at 700: e^700 is infinite in float32, and a factor of 1e38 does not change that.
HWY_INLINE Power PowerOf(V x) {
  // (e^r - 1) / r for |r| <= ln 2 / 2: 5.2e-12.
  constexpr double kRest[] = {2.4867883453521802e-05, 0.00019907582591325134, 0.001388883909064138,
                              0.008333283518768105,   0.041666666786337556,   0.1666666678638044,
                              0.4999999999995507,     0.9999999999955055};
  // Max and Min return their second argument when one is NaN.
  x = hn::Min(Number(700.0), hn::Max(Number(-700.0), x));
  // Adding 1.5 * 2^52 rounds to an integer n; 1023 more, and the low bits are the exponent of 2^n.
  const V magic = Number(6755399441055744.0 + 1023.0);
  const V sum = hn::MulAdd(x, Number(1.4426950408889634), magic);
  const V r = hn::NegMulAdd(hn::Sub(sum, magic), Number(0.6931471805599453), x);
  const V scale = hn::BitCast(D(), hn::ShiftLeft<52>(hn::BitCast(DU(), sum)));
  return {scale, hn::Mul(r, Polynomial(r, kRest))};
}

HWY_INLINE V Exp(V x) {
  const Power p = PowerOf(x);
  return hn::MulAdd(p.scale, p.rest, p.scale);
}

// 2 atanh(f) = log((1 + f) / (1 - f)) for |f| <= 1/3: 6.8e-14.
HWY_INLINE V TwoAtanh(V f) {
  constexpr double kSeries[] = {0.10034077847425321, 0.07035379662321815, 0.0915502181938133,
                                0.11107700090055997, 0.14285812013750593, 0.19999998632121246,
                                0.3333333334059967,  0.9999999999999368};
  return hn::Mul(hn::Add(f, f), Polynomial(hn::Mul(f, f), kSeries));
}

// log(1 + e) for 0 <= e <= 1.
HWY_INLINE V Log1p(V e) { return TwoAtanh(hn::Div(e, hn::Add(e, Number(2.0)))); }

// -inf at 0, NaN below.
HWY_INLINE V Log(V x) {
  const D d;
  const DU du;
  const auto bits = hn::BitCast(du, x);
  // x = 2^n m with m in [sqrt(1/2), sqrt(2)); 0x3FE6A09E667F3BCD are the bits of sqrt(1/2).
  const auto exponent = hn::ShiftRight<52>(
      hn::Add(bits, hn::Set(du, 0x3FF0000000000000u - uint64_t{0x3FE6A09E667F3BCD})));
  // The bits of 2^52 turn a small integer into a double.
  const V n = hn::Sub(hn::BitCast(d, hn::Or(exponent, hn::Set(du, 0x4330000000000000u))),
                      Number(4503599627370496.0 + 1023.0));
  const V m = hn::BitCast(
      d, hn::Add(hn::Sub(bits, hn::ShiftLeft<52>(exponent)), hn::Set(du, 0x3FF0000000000000u)));
  const V log_m = TwoAtanh(hn::Div(hn::Sub(m, Number(1.0)), hn::Add(m, Number(1.0))));
  const V y = hn::MulAdd(n, Number(0.6931471805599453), log_m);
  const V zero = hn::Zero(d);
  const V special = hn::IfThenElse(
      hn::Eq(x, zero), Number(-kInf),
      hn::IfThenElse(hn::Lt(x, zero), Number(std::numeric_limits<double>::quiet_NaN()), x));
  return hn::IfThenElse(hn::And(hn::Gt(x, zero), hn::Lt(x, Number(kInf))), y, special);
}

HWY_NOINLINE HWY_MAYBE_UNUSED static V SinEachLane(V x, double phase) {
  HWY_ALIGN double lanes[HWY_LANES(double)];
  hn::Store(x, D(), lanes);
  for (double& lane : lanes) lane = phase == 0 ? std::sin(lane) : std::cos(lane);
  return hn::Load(D(), lanes);
}

// sin(x + quarters pi / 2) for 0 and 1 quarters.
HWY_INLINE V SinOf(V x, int quarters) {
  const D d;
  const DU du;
  // sin(r) / r and cos(r) in r^2 for |r| <= pi / 4: 4.8e-12 and 7.9e-14.
  constexpr double kSin[] = {2.717338055746829e-06, -0.00019839201388559692, 0.008333328779736226,
                             -0.16666666631563162, 0.9999999999956688};
  constexpr double kCos[] = {-2.7173353546655085e-07, 2.4798927696218343e-05, -0.001388888038869402,
                             0.041666666543813194,    -0.4999999999935047,    0.9999999999999444};
  // Up to here n fits 20 bits, so that n times the first 33 bits of pi / 2 is exact.
  if (!hn::AllTrue(d, hn::Le(hn::Abs(x), Number(1e6)))) return SinEachLane(x, quarters);
  const V magic = Number(6755399441055744.0);
  const V sum = hn::MulAdd(x, Number(0.6366197723675814), magic);
  const V n = hn::Sub(sum, magic);
  V r = hn::NegMulAdd(n, Number(1.57079632673412561417), x);
  r = hn::NegMulAdd(n, Number(6.07710050650619224932e-11), r);
  const auto quarter = hn::Add(hn::BitCast(du, sum), hn::Set(du, static_cast<uint64_t>(quarters)));
  const auto odd = hn::Eq(hn::And(quarter, hn::Set(du, 1)), hn::Set(du, 1));
  const V square = hn::Mul(r, r);
  const V y = hn::IfThenElse(hn::RebindMask(d, odd), Polynomial(square, kCos),
                             hn::Mul(r, Polynomial(square, kSin)));
  const auto negative = hn::ShiftLeft<62>(hn::And(quarter, hn::Set(du, 2)));
  return hn::Xor(y, hn::BitCast(d, negative));
}

HWY_INLINE V Tanh(V x) {
  // (e^-2|x| - 1) / (e^-2|x| + 1), with e^y - 1 free of cancellation at 0.
  const Power p = PowerOf(hn::Mul(Number(-2.0), hn::Abs(x)));
  const V less = hn::MulAdd(p.scale, p.rest, hn::Sub(p.scale, Number(1.0)));
  return hn::CopySign(hn::Div(less, hn::Add(less, Number(2.0))), x);
}

HWY_INLINE V Sigmoid(V x) { return hn::Div(Number(1.0), hn::Add(Number(1.0), Exp(hn::Neg(x)))); }

HWY_INLINE V Softplus(V x) {
  return hn::Add(hn::Max(hn::Zero(D()), x), Log1p(Exp(hn::Neg(hn::Abs(x)))));
}

HWY_INLINE V LogAddExp(V a, V b) {
  // Equal infinities have no difference.
  const V distance = hn::IfThenZeroElse(hn::Eq(a, b), hn::Abs(hn::Sub(a, b)));
  return hn::Add(hn::Max(a, b), Log1p(Exp(hn::Neg(distance))));
}

// Distribution function of the standard normal for |x| <= 30. erfc(z) = e^(-z^2) t Q(t),
// t = 1 / (1 + 0.3 z), z <= 10.5: 4.5e-10; beyond, e^(-z^2) is 0 in float32.
HWY_INLINE V NormalCdf(V x) {
  constexpr double kQ[] = {0.005104872487720169, 0.021042422697807647, -0.22758258697861827,
                           0.5560939754628257,   -0.62018491972828,    0.5966865901554218,
                           -0.18426421660398437, 0.22876533081360623,  0.12033790449907382,
                           0.165871701110466,    0.1688551283104369,   0.16927379788432653};
  const V z = hn::Mul(hn::Abs(x), Number(0.7071067811865476));
  const V t = hn::Div(Number(1.0), hn::MulAdd(z, Number(0.3), Number(1.0)));
  const V half_tail = hn::Mul(hn::Mul(Number(0.5), t), Polynomial(t, kQ));
  const V tail = hn::Mul(half_tail, Exp(hn::Neg(hn::Mul(z, z))));
  return hn::IfThenElse(hn::Lt(x, hn::Zero(D())), tail, hn::Sub(Number(1.0), tail));
}

// Density of the standard normal for |x| <= 30.
HWY_INLINE V NormalDensity(V x) {
  return hn::Mul(Number(0.3989422804014327), Exp(hn::Mul(Number(-0.5), hn::Mul(x, x))));
}

}  // namespace attnd::HWY_NAMESPACE::wide
HWY_AFTER_NAMESPACE();

#endif
