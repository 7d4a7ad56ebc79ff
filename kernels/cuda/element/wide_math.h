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

// 2 atanh(f) = log((1 + f) / (1 - f)) for |f| <= 1/3: 6.8e-14.
SIMT_FN double TwoAtanh(double f) {
  constexpr double kSeries[] = {0.10034077847425321, 0.07035379662321815, 0.0915502181938133,
                                0.11107700090055997, 0.14285812013750593, 0.19999998632121246,
                                0.3333333334059967,  0.9999999999999368};
  return (f + f) * Polynomial(f * f, kSeries);
}

// log(1 + e) for 0 <= e <= 1.
SIMT_FN double Log1p(double e) { return TwoAtanh(e * Reciprocal(e + 2)); }

// Of a normal number.
SIMT_FN double Log(double x) {
  // x = 2^n m with m in [sqrt(1/2), sqrt(2)); 0x3FE6A09E667F3BCD are the bits of sqrt(1/2).
  const long long bits = __double_as_longlong(x);
  const auto n = static_cast<int>((bits - 0x3FE6A09E667F3BCDll) >> 52);
  const double m = __longlong_as_double(bits - (static_cast<long long>(n) << 52));
  return n * 0.6931471805599453 + TwoAtanh((m - 1) * Reciprocal(m + 1));
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

// An angle x = (quarters + 4 k) pi / 2 + rest, |rest| <= pi / 4.
struct Angle {
  double rest;
  int quarters;
};
SIMT_FN Angle AngleOf(float x) {
  // n is exact, and each step rounds what is left of x once.
  constexpr double kMagic = 6755399441055744.0;
  const double sum = x * 0.6366197723675814 + kMagic, n = sum - kMagic;
  const double rest = fma(-n, 6.123233995736766e-17, fma(-n, 1.5707963267948966, x));
  return {rest, static_cast<int>(__double_as_longlong(sum))};
}
// Of 2^25 <= x < infinity, after Payne and Hanek 1983: x = mantissa 2^exponent, and bits of 2 / pi
// that make multiples of four quarters are left out.
SIMT_FN Angle FarAngleOf(float x) {
  constexpr uint32_t kTwoOverPi[] = {0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u,
                                     0xdb629599u, 0x3c439041u, 0xfe5163abu};
  const uint32_t bits = __float_as_uint(x), mantissa = (bits & 0x7fffffu) | 0x800000u;
  const int skipped = static_cast<int>(bits >> 23) - 150 - 2, first = skipped / 32;
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] = first == 0   ? kTwoOverPi[i]
               : first == 1 ? kTwoOverPi[i + 1]
               : first == 2 ? kTwoOverPi[i + 2]
                            : kTwoOverPi[i + 3];
  }
  // 96 bits; of the product the two highest are quarters.
  const auto factor = [&](int i) -> uint64_t {
    return __funnelshift_l(words[i + 1], words[i], static_cast<unsigned>(skipped % 32));
  };
  const uint64_t product =
      (mantissa * factor(0) << 32) + mantissa * factor(1) + (mantissa * factor(2) >> 32);
  const uint64_t quarters = (product + (uint64_t{1} << 61)) >> 62;
  const auto rest = static_cast<int64_t>(product - (quarters << 62));
  return {static_cast<double>(rest) * 3.406121580086554e-19, static_cast<int>(quarters)};
}

// sin(x + quarters pi / 2) for 0 and 1 quarters.
SIMT_FN double SinOf(float x, int quarters) {
  // sin(r) / r and cos(r) in r^2 for |r| <= pi / 4: 4.8e-12 and 7.9e-14.
  constexpr double kSin[] = {2.717338055746829e-06, -0.00019839201388559692, 0.008333328779736226,
                             -0.16666666631563162, 0.9999999999956688};
  constexpr double kCos[] = {-2.7173353546655085e-07, 2.4798927696218343e-05, -0.001388888038869402,
                             0.041666666543813194,    -0.4999999999935047,    0.9999999999999444};
  if (!(fabsf(x) < INFINITY)) return x - x;
  const bool is_far = fabsf(x) >= 33554432.0f, turns = is_far && x < 0 && quarters == 0;
  const Angle angle = is_far ? FarAngleOf(fabsf(x)) : AngleOf(x);
  const int quarter = angle.quarters + quarters + (turns ? 2 : 0);
  const double square = angle.rest * angle.rest;
  const double y =
      (quarter & 1) != 0 ? Polynomial(square, kCos) : angle.rest * Polynomial(square, kSin);
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
