// Elementary functions in float64 for arguments and results in float32: what textbook formulas
// cancel is lost far below float32. Relative error below 1e-9 (most: 1e-11), so that rounding to
// float32 is the only error. NaN stays NaN. 15 to 40 operations and no branch: half as fast as
// float32 on data-centre processors, so float32 streams stay bound by memory. The same
// polynomials as the processor's (kernels/cpu/simd/wide_math-inl.h).
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/simt.h"

namespace attnd::cuda::wide {

// coefficients[0] x^(n-1) + .. + coefficients[n-1].
template <int kCount>
SIMT_FN double Polynomial(double x, const double (&coefficients)[kCount]) {
  double y = coefficients[0];
#pragma unroll
  for (int i = 1; i < kCount; ++i) y = y * x + coefficients[i];
  return y;
}

// 1 / x for 1e-300 < |x| < 1e300: a step of Newton's method from 20 bits gives 39.
SIMT_FN double Reciprocal(double x) {
  const double y = simt::RoughReciprocal(x);
  return y + y * (1 - x * y);
}

// Between -most and most; NaN stays.
SIMT_FN float Cut(float x, float most) { return x < -most ? -most : x > most ? most : x; }
SIMT_FN double CutBelow(float x, float least) { return x < least ? least : x; }

// e^x = scale (1 + rest). REQUIRES: |x| <= 700, or NaN.
struct Power {
  double scale, rest;
};
SIMT_FN Power PowerOf(double x) {
  // (e^r - 1) / r for |r| <= ln 2 / 2: 5.2e-12.
  constexpr double kRest[] = {2.4867883453521802e-05, 0.00019907582591325134, 0.001388883909064138,
                              0.008333283518768105,   0.041666666786337556,   0.1666666678638044,
                              0.4999999999995507,     0.9999999999955055};
  // Adding 1.5 * 2^52 rounds to an integer n; 1023 more, and the low bits are the exponent of 2^n.
  constexpr double kMagic = 6755399441055744.0 + 1023.0;
  const double sum = x * 1.4426950408889634 + kMagic;
  const double r = x - (sum - kMagic) * 0.6931471805599453;
  const auto bits = static_cast<unsigned long long>(__double_as_longlong(sum));
  return {__longlong_as_double(static_cast<long long>(bits << 52)), r * Polynomial(r, kRest)};
}

// REQUIRES: |x| <= 700, or NaN.
SIMT_FN double Exp(double x) {
  const Power p = PowerOf(x);
  return p.scale * p.rest + p.scale;
}
// Of any x: 1e304 stands for infinity, as a factor of float32 does not make it finite.
SIMT_FN double ExpOf(float x) { return Exp(Cut(x, 700)); }
// e^-|x|.
SIMT_FN double ExpOfMinus(float x) { return Exp(CutBelow(-fabsf(x), -700)); }

// log(1 + e) for 0 <= e <= 1.
SIMT_FN double Log1p(double e) {
  // 2 atanh(f) = log((1 + f) / (1 - f)) for |f| <= 1/3: 6.8e-14.
  constexpr double kSeries[] = {0.10034077847425321, 0.07035379662321815, 0.0915502181938133,
                                0.11107700090055997, 0.14285812013750593, 0.19999998632121246,
                                0.3333333334059967,  0.9999999999999368};
  const double f = e * Reciprocal(e + 2);
  return (f + f) * Polynomial(f * f, kSeries);
}

SIMT_FN double Tanh(float x) {
  // (e^-2|x| - 1) / (e^-2|x| + 1), with e^y - 1 free of cancellation at 0.
  const Power p = PowerOf(CutBelow(-2 * fabsf(x), -700));
  const double less = p.scale * p.rest + (p.scale - 1);
  return copysign(less * Reciprocal(less + 2), static_cast<double>(x));
}

SIMT_FN double Sigmoid(float x) {
  const double e = ExpOfMinus(x), r = Reciprocal(1 + e);
  return x < 0 ? e * r : r;
}

SIMT_FN double Softplus(float x) { return (x > 0 ? x : 0.0f) + Log1p(ExpOfMinus(x)); }

SIMT_FN double LogAddExp(float a, float b) {
  // Equal infinities have no difference.
  const double most = a > b || a != a ? a : b, least = a > b || a != a ? b : a;
  double distance = most == least ? 0 : least - most;
  if (distance < -700) distance = -700;
  return most + Log1p(Exp(distance));
}

// Of a quarter far from 0.
template <class = void>
__device__ __noinline__ double FarSin(double x, int quarters) {
  return quarters == 0 ? sin(x) : cos(x);
}

// sin(x + quarters pi / 2) for 0 and 1 quarters.
SIMT_FN double SinOf(float number, int quarters) {
  // sin(r) / r and cos(r) in r^2 for |r| <= pi / 4: 4.8e-12 and 7.9e-14.
  constexpr double kSin[] = {2.717338055746829e-06, -0.00019839201388559692, 0.008333328779736226,
                             -0.16666666631563162, 0.9999999999956688};
  constexpr double kCos[] = {-2.7173353546655085e-07, 2.4798927696218343e-05, -0.001388888038869402,
                             0.041666666543813194,    -0.4999999999935047,    0.9999999999999444};
  // Up to here n fits 20 bits, so that n times the first 33 bits of pi / 2 is exact.
  if (!(fabsf(number) <= 1e6f)) return FarSin<>(number, quarters);
  constexpr double kMagic = 6755399441055744.0;
  const double x = number;
  const double sum = x * 0.6366197723675814 + kMagic, n = sum - kMagic;
  const double r = (x - n * 1.57079632673412561417) - n * 6.07710050650619224932e-11;
  const int quarter = static_cast<int>(__double_as_longlong(sum)) + quarters;
  const double square = r * r;
  const double y = (quarter & 1) != 0 ? Polynomial(square, kCos) : r * Polynomial(square, kSin);
  return (quarter & 2) != 0 ? -y : y;
}

// Distribution function of the standard normal for |x| <= 30. erfc(z) = e^(-z^2) t Q(t),
// t = 1 / (1 + 0.3 z), z <= 10.5: 4.5e-10; beyond, e^(-z^2) is 0 in float32.
SIMT_FN double NormalCdf(double x) {
  constexpr double kQ[] = {0.005104872487720169, 0.021042422697807647, -0.22758258697861827,
                           0.5560939754628257,   -0.62018491972828,    0.5966865901554218,
                           -0.18426421660398437, 0.22876533081360623,  0.12033790449907382,
                           0.165871701110466,    0.1688551283104369,   0.16927379788432653};
  const double z = fabs(x) * 0.7071067811865476;
  const double t = Reciprocal(z * 0.3 + 1);
  const double tail = 0.5 * t * Polynomial(t, kQ) * Exp(-(z * z));
  return x < 0 ? tail : 1 - tail;
}

// Density of the standard normal for |x| <= 30.
SIMT_FN double NormalDensity(double x) { return 0.3989422804014327 * Exp(-0.5 * (x * x)); }

}  // namespace attnd::cuda::wide
