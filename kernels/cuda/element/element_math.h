// The operations of elementwise, and the derivatives of those of one operand, on numbers of
// float32: exact to 2 ulp (kernels/device/elementwise.h). What takes more than one rounding of a
// function runs in float64 (wide_math.h).
#pragma once

#include <type_traits>

#include "kernels/cuda/element/wide_math.h"
#include "kernels/cuda/simt.h"
#include "kernels/device/elementwise.h"

namespace attnd::cuda {

namespace element_internal {

// 0.5 (1 + tanh(u)) is sigmoid(2 u); 2 u of the tanh form of gelu (Hendrycks and Gimpel 2016).
constexpr double kGeluScale = 1.5957691216057308;  // 2 sqrt(2 / pi)
SIMT_FN double GeluTanhArgument(double x) { return kGeluScale * (0.044715 * (x * x * x) + x); }

// x sigmoid(u(x)) has the slope s + x s (1 - s) u', where 1 - s = e^-u s.
SIMT_FN double SlopeOfGated(double x, double u, double du) {
  const double e = wide::Exp(-u), s = wide::Reciprocal(1 + e);
  return x * du * (e * s) * s + s;
}

// e / (1 + e)^2.
SIMT_FN double Bell(double e) {
  const double r = wide::Reciprocal(1 + e);
  return e * r * r;
}

// Where |x| is larger, e^-x^2/2 and the sigmoid of the tanh form are 0 or 1 in float32.
constexpr float kGeluCut = 20, kGeluTanhCut = 13, kSiluCut = 200;

}  // namespace element_internal

// op(x) of an operation of one operand; kAffine with alpha = 1 and beta = 0. NaN stays NaN:
// comparisons with it are false.
template <ElementOp kOp>
SIMT_FN float ElementMap(float x) {
  using namespace element_internal;
  if constexpr (kOp == ElementOp::kCopy || kOp == ElementOp::kAffine) {
    return x;
  } else if constexpr (kOp == ElementOp::kAbs) {
    return fabsf(x);
  } else if constexpr (kOp == ElementOp::kSquare) {
    return x * x;
  } else if constexpr (kOp == ElementOp::kSqrt) {
    return sqrtf(x);
  } else if constexpr (kOp == ElementOp::kReciprocal) {
    return 1 / x;
  } else if constexpr (kOp == ElementOp::kExp) {
    return expf(x);  // CUDA's own: 1 ulp, as that of log (programming guide)
  } else if constexpr (kOp == ElementOp::kLog) {
    return logf(x);
  } else if constexpr (kOp == ElementOp::kSin) {
    return static_cast<float>(wide::SinOf(x, 0));
  } else if constexpr (kOp == ElementOp::kCos) {
    return static_cast<float>(wide::SinOf(x, 1));
  } else if constexpr (kOp == ElementOp::kTanh) {
    return static_cast<float>(wide::Tanh(x));
  } else if constexpr (kOp == ElementOp::kSigmoid) {
    return static_cast<float>(wide::Sigmoid(x));
  } else if constexpr (kOp == ElementOp::kLogSigmoid) {
    return static_cast<float>(-wide::Softplus(-x));
  } else if constexpr (kOp == ElementOp::kSoftplus) {
    return static_cast<float>(wide::Softplus(x));
  } else if constexpr (kOp == ElementOp::kRelu) {
    return x < 0 ? 0 : x;
  } else if constexpr (kOp == ElementOp::kReluSquared) {
    return x < 0 ? 0 : x * x;
  } else if constexpr (kOp == ElementOp::kRelu6) {
    return x < 0 ? 0 : x > 6 ? 6 : x;
  } else if constexpr (kOp == ElementOp::kEluPlusOne) {
    return x > 0 ? x + 1 : expf(x);
  } else if constexpr (kOp == ElementOp::kSilu) {
    // Cut below, where the result is 0 in float32, so that -inf gives 0 as well.
    const float y = x < -kSiluCut ? -kSiluCut : x;
    return static_cast<float>(y * wide::Sigmoid(y));
  } else if constexpr (kOp == ElementOp::kGelu) {
    const float y = x < -kGeluCut ? -kGeluCut : x;
    return static_cast<float>(y * wide::NormalCdf(y > kGeluCut ? kGeluCut : y));
  } else {
    static_assert(kOp == ElementOp::kGeluTanh, "an operation of several operands");
    const float y = x < -kGeluTanhCut ? -kGeluTanhCut : x;
    const double u = GeluTanhArgument(y > kGeluTanhCut ? kGeluTanhCut : y);
    return static_cast<float>(y * wide::Reciprocal(1 + wide::Exp(-u)));
  }
}

// g d op(x) / dx; kAffine with alpha = 1. Where a function is flat, 0 whatever g is.
template <ElementOp kOp>
SIMT_FN float ElementSlope(float g, float x) {
  using namespace element_internal;
  [[maybe_unused]] const double wide_g = g;
  if constexpr (kOp == ElementOp::kCopy || kOp == ElementOp::kAffine) {
    return g;
  } else if constexpr (kOp == ElementOp::kAbs) {
    return x > 0 ? g : x < 0 ? -g : x;
  } else if constexpr (kOp == ElementOp::kSquare) {
    return 2 * (g * x);  // 2 x would overflow early
  } else if constexpr (kOp == ElementOp::kSqrt) {
    return 0.5f * g / sqrtf(x);
  } else if constexpr (kOp == ElementOp::kReciprocal) {
    return -(g / x) / x;  // a square would leave float32
  } else if constexpr (kOp == ElementOp::kExp) {
    return static_cast<float>(wide_g * wide::ExpOf(x));
  } else if constexpr (kOp == ElementOp::kLog) {
    return g / x;
  } else if constexpr (kOp == ElementOp::kSin) {
    return static_cast<float>(wide_g * wide::SinOf(x, 1));
  } else if constexpr (kOp == ElementOp::kCos) {
    return static_cast<float>(-wide_g * wide::SinOf(x, 0));
  } else if constexpr (kOp == ElementOp::kTanh) {  // 4 e / (1 + e)^2, e = e^-2|x|
    return static_cast<float>(wide_g * (4 * Bell(wide::ExpOfMinus(2 * x))));
  } else if constexpr (kOp == ElementOp::kSigmoid) {
    return static_cast<float>(wide_g * Bell(wide::ExpOfMinus(x)));
  } else if constexpr (kOp == ElementOp::kLogSigmoid) {
    return static_cast<float>(wide_g * wide::Sigmoid(-x));
  } else if constexpr (kOp == ElementOp::kSoftplus) {
    return static_cast<float>(wide_g * wide::Sigmoid(x));
  } else if constexpr (kOp == ElementOp::kRelu) {
    return x > 0 ? g : 0;
  } else if constexpr (kOp == ElementOp::kReluSquared) {
    return x > 0 ? 2 * (g * x) : 0;
  } else if constexpr (kOp == ElementOp::kRelu6) {
    return x > 0 && x < 6 ? g : 0;
  } else if constexpr (kOp == ElementOp::kEluPlusOne) {
    return x > 0 ? g : static_cast<float>(wide_g * wide::ExpOf(x));
  } else if constexpr (kOp == ElementOp::kSilu) {
    const double y = wide::Cut(x, kSiluCut);
    return static_cast<float>(wide_g * SlopeOfGated(y, /*u=*/y, /*du=*/1));
  } else if constexpr (kOp == ElementOp::kGelu) {
    const double y = wide::Cut(x, kGeluCut);
    return static_cast<float>(wide_g * (y * wide::NormalDensity(y) + wide::NormalCdf(y)));
  } else {
    static_assert(kOp == ElementOp::kGeluTanh, "an operation of several operands");
    const double y = wide::Cut(x, kGeluTanhCut);
    const double du = 3 * 0.044715 * kGeluScale * (y * y) + kGeluScale;
    return static_cast<float>(wide_g * SlopeOfGated(y, GeluTanhArgument(y), du));
  }
}

// Calls f with a value of a type whose `value` is the operation of one operand `op`: a branch
// outside of loops over elements. Every operation is one more copy of f's code.
template <class F>
SIMT_FN void WithUnary(ElementOp op, const F& f) {
#define ATTND_UNARY(name) \
  case ElementOp::name:   \
    return f(std::integral_constant<ElementOp, ElementOp::name>())
  switch (op) {
    ATTND_UNARY(kCopy);
    ATTND_UNARY(kAffine);
    ATTND_UNARY(kAbs);
    ATTND_UNARY(kSquare);
    ATTND_UNARY(kSqrt);
    ATTND_UNARY(kReciprocal);
    ATTND_UNARY(kExp);
    ATTND_UNARY(kLog);
    ATTND_UNARY(kSin);
    ATTND_UNARY(kCos);
    ATTND_UNARY(kTanh);
    ATTND_UNARY(kSigmoid);
    ATTND_UNARY(kLogSigmoid);
    ATTND_UNARY(kSoftplus);
    ATTND_UNARY(kRelu);
    ATTND_UNARY(kReluSquared);
    ATTND_UNARY(kRelu6);
    ATTND_UNARY(kEluPlusOne);
    ATTND_UNARY(kSilu);
    ATTND_UNARY(kGelu);
    ATTND_UNARY(kGeluTanh);
    default:
      return;
  }
#undef ATTND_UNARY
}

// The same for one element.
SIMT_FN float ElementMapOf(ElementOp op, float x) {
  float y = x;
  WithUnary(op, [&](auto of) { y = ElementMap<decltype(of)::value>(x); });
  return y;
}
SIMT_FN float ElementSlopeOf(ElementOp op, float g, float x) {
  float y = g;
  WithUnary(op, [&](auto of) { y = ElementSlope<decltype(of)::value>(g, x); });
  return y;
}

}  // namespace attnd::cuda
