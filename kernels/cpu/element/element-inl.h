// The operations of elementwise on rows of float32: those that take more than a few instructions
// run in float64 (wide_math-inl.h).
#if defined(ATTND_CPU_ELEMENT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_ELEMENT_INL_H_
#undef ATTND_CPU_ELEMENT_INL_H_
#else
#define ATTND_CPU_ELEMENT_INL_H_
#endif

#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/simd/wide_math-inl.h"
#include "kernels/device/device.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// n elements of each operand that the operation has; out may be one of them.
struct ElementRow {
  const float* in[3];
  float* out;
  int64_t n;
};

namespace element_internal {
using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
using VW = wide::V;
using wide::Number;

HWY_INLINE VF LoadAs(DF d, const float* from) { return hn::LoadU(d, from); }
HWY_INLINE VW LoadAs(wide::D d, const float* from) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, wide::D>(), from));
}
HWY_INLINE void StoreAs(DF d, VF x, float* to) { hn::StoreU(x, d, to); }
HWY_INLINE void StoreAs(wide::D, VW x, float* to) {
  const hn::Rebind<float, wide::D> half;
  hn::StoreU(hn::DemoteTo(half, x), half, to);
}

template <int kOperands, class D, class F>
HWY_INLINE void MapVector(D d, const F& f, const float* a, const float* b, const float* c,
                          float* out) {
  if constexpr (kOperands == 1) StoreAs(d, f(LoadAs(d, a)), out);
  if constexpr (kOperands == 2) StoreAs(d, f(LoadAs(d, a), LoadAs(d, b)), out);
  if constexpr (kOperands == 3) StoreAs(d, f(LoadAs(d, a), LoadAs(d, b), LoadAs(d, c)), out);
}

// Everything in vectors of D, the rest through padded copies.
template <int kOperands, class D, class F>
HWY_INLINE void Map(D d, const ElementRow& row, const F& f) {
  constexpr int64_t kStep = HWY_LANES(hn::TFromD<D>);
  const float *a = row.in[0], *b = row.in[1], *c = row.in[2];
  int64_t i = 0;
  for (; i + kStep <= row.n; i += kStep) {
    MapVector<kOperands>(d, f, a + i, kOperands > 1 ? b + i : a, kOperands > 2 ? c + i : a,
                         row.out + i);
  }
  if (i == row.n) return;
  float rest[4][kStep] = {};
  for (int k = 0; k < kOperands; ++k) {
    std::memcpy(rest[k], row.in[k] + i, (row.n - i) * sizeof(float));
  }
  MapVector<kOperands>(d, f, rest[0], rest[1], rest[2], rest[3]);
  std::memcpy(row.out + i, rest[3], (row.n - i) * sizeof(float));
}

// 0.5 (1 + tanh(u)) is sigmoid(2 u); 2 u of the tanh form of gelu (Hendrycks and Gimpel 2016).
constexpr double kGeluScale = 1.5957691216057308;  // 2 sqrt(2 / pi)
HWY_INLINE VW GeluTanhArgument(VW x) {
  const VW cube = hn::Mul(hn::Mul(x, x), x);
  return hn::Mul(Number(kGeluScale), hn::MulAdd(Number(0.044715), cube, x));
}

// x sigmoid(u(x)) has the slope s + x s (1 - s) u', where 1 - s = e^-u s.
HWY_INLINE VW SlopeOfGated(VW x, VW u, VW du) {
  const VW e = wide::Exp(hn::Neg(u));
  const VW s = hn::Div(Number(1), hn::Add(Number(1), e));
  return hn::MulAdd(hn::Mul(hn::Mul(x, du), hn::Mul(e, s)), s, s);
}

HWY_INLINE VW Cut(VW x, double most) { return hn::Min(Number(most), hn::Max(Number(-most), x)); }
}  // namespace element_internal

// out = op(a, b, c).
HWY_NOINLINE HWY_MAYBE_UNUSED static void ElementForward(const ElementwiseArgs& args,
                                                         const ElementRow& row) {
  using namespace element_internal;
  const DF d;
  const wide::D w;
  const VF zero = hn::Zero(d), one = hn::Set(d, 1.0f);
  switch (args.op) {
    case ElementOp::kCopy:
      return Map<1>(d, row, [](VF x) { return x; });
    case ElementOp::kAffine: {
      const VF alpha = hn::Set(d, args.alpha), beta = hn::Set(d, args.beta);
      return Map<1>(d, row, [=](VF x) { return hn::MulAdd(alpha, x, beta); });
    }
    case ElementOp::kAbs:
      return Map<1>(d, row, [](VF x) { return hn::Abs(x); });
    case ElementOp::kSquare:
      return Map<1>(d, row, [](VF x) { return hn::Mul(x, x); });
    case ElementOp::kSqrt:
      return Map<1>(d, row, [](VF x) { return hn::Sqrt(x); });
    case ElementOp::kReciprocal:
      return Map<1>(d, row, [=](VF x) { return hn::Div(one, x); });
    case ElementOp::kExp:
      return Map<1>(w, row, [](VW x) { return wide::Exp(x); });
    case ElementOp::kLog:
      return Map<1>(w, row, [](VW x) { return wide::Log(x); });
    case ElementOp::kSin:
      return Map<1>(w, row, [](VW x) { return wide::SinOf(x, 0); });
    case ElementOp::kCos:
      return Map<1>(w, row, [](VW x) { return wide::SinOf(x, 1); });
    case ElementOp::kTanh:
      return Map<1>(w, row, [](VW x) { return wide::Tanh(x); });
    case ElementOp::kSigmoid:
      return Map<1>(w, row, [](VW x) { return wide::Sigmoid(x); });
    case ElementOp::kLogSigmoid:
      return Map<1>(w, row, [](VW x) { return hn::Neg(wide::Softplus(hn::Neg(x))); });
    case ElementOp::kSoftplus:
      return Map<1>(w, row, [](VW x) { return wide::Softplus(x); });
    // Written so that NaN stays NaN: comparisons with it are false.
    case ElementOp::kRelu:
      return Map<1>(d, row, [=](VF x) { return hn::IfThenZeroElse(hn::Lt(x, zero), x); });
    case ElementOp::kReluSquared:
      return Map<1>(d, row,
                    [=](VF x) { return hn::IfThenZeroElse(hn::Lt(x, zero), hn::Mul(x, x)); });
    case ElementOp::kRelu6: {
      const VF six = hn::Set(d, 6.0f);
      return Map<1>(d, row, [=](VF x) {
        return hn::IfThenElse(hn::Gt(x, six), six, hn::IfThenZeroElse(hn::Lt(x, zero), x));
      });
    }
    case ElementOp::kEluPlusOne:
      return Map<1>(w, row, [](VW x) {
        return hn::IfThenElse(hn::Gt(x, Number(0)), hn::Add(x, Number(1)), wide::Exp(x));
      });
    // Cut below, where the result is 0 in float32, so that -inf gives 0 as well.
    case ElementOp::kSilu:
      return Map<1>(w, row, [](VW x) {
        const VW y = hn::Max(Number(-200), x);
        return hn::Mul(y, wide::Sigmoid(y));
      });
    case ElementOp::kGelu:
      return Map<1>(w, row, [](VW x) {
        const VW y = hn::Max(Number(-30), x);
        return hn::Mul(y, wide::NormalCdf(hn::Min(Number(30), y)));
      });
    case ElementOp::kGeluTanh:
      return Map<1>(w, row, [](VW x) {
        const VW y = hn::Max(Number(-30), x);
        return hn::Mul(y, wide::Sigmoid(GeluTanhArgument(hn::Min(Number(30), y))));
      });
    case ElementOp::kAdd:
      return Map<2>(d, row, [](VF x, VF y) { return hn::Add(x, y); });
    case ElementOp::kSubtract:
      return Map<2>(d, row, [](VF x, VF y) { return hn::Sub(x, y); });
    case ElementOp::kMultiply:
      return Map<2>(d, row, [](VF x, VF y) { return hn::Mul(x, y); });
    case ElementOp::kDivide:
      return Map<2>(d, row, [](VF x, VF y) { return hn::Div(x, y); });
    case ElementOp::kSafeDivide:
      return Map<2>(d, row,
                    [=](VF x, VF y) { return hn::IfThenZeroElse(hn::Eq(y, zero), hn::Div(x, y)); });
    case ElementOp::kMaximum:
      return Map<2>(d, row, [](VF x, VF y) {
        return hn::IfThenElse(hn::Or(hn::Gt(x, y), hn::IsNaN(x)), x, y);
      });
    case ElementOp::kMinimum:
      return Map<2>(d, row, [](VF x, VF y) {
        return hn::IfThenElse(hn::Or(hn::Lt(x, y), hn::IsNaN(x)), x, y);
      });
    case ElementOp::kLogAddExp:
      return Map<2>(w, row, [](VW x, VW y) { return wide::LogAddExp(x, y); });
    case ElementOp::kGreater:
      return Map<2>(d, row, [=](VF x, VF y) { return hn::IfThenElseZero(hn::Gt(x, y), one); });
    case ElementOp::kEqual:
      return Map<2>(d, row, [=](VF x, VF y) { return hn::IfThenElseZero(hn::Eq(x, y), one); });
    case ElementOp::kSelect:
      return Map<3>(d, row,
                    [=](VF x, VF y, VF z) { return hn::IfThenElse(hn::Eq(x, zero), z, y); });
  }
}

// out = g df(x)/dx for a = g, b = x. Where a function is flat the result is 0 whatever g is.
HWY_NOINLINE HWY_MAYBE_UNUSED static void ElementDerivative(const ElementwiseArgs& args,
                                                            const ElementRow& row) {
  using namespace element_internal;
  const DF d;
  const wide::D w;
  const VF zero = hn::Zero(d);
  switch (args.op) {
    case ElementOp::kCopy:
      return Map<1>(d, row, [](VF g) { return g; });
    case ElementOp::kAffine: {
      const VF alpha = hn::Set(d, args.alpha);
      return Map<1>(d, row, [=](VF g) { return hn::Mul(alpha, g); });
    }
    case ElementOp::kAbs:
      return Map<2>(d, row, [=](VF g, VF x) {
        const VF left = hn::IfThenElse(hn::Lt(x, zero), hn::Neg(g), x);
        return hn::IfThenElse(hn::Gt(x, zero), g, left);
      });
    // 2 x would overflow early in float32.
    case ElementOp::kSquare:
      return Map<2>(w, row, [](VW g, VW x) { return hn::Mul(g, hn::Add(x, x)); });
    case ElementOp::kSqrt:
      return Map<2>(w, row, [](VW g, VW x) { return hn::Div(g, hn::Mul(Number(2), hn::Sqrt(x))); });
    case ElementOp::kReciprocal:
      return Map<2>(w, row, [](VW g, VW x) { return hn::Div(hn::Neg(g), hn::Mul(x, x)); });
    case ElementOp::kExp:
      return Map<2>(w, row, [](VW g, VW x) { return hn::Mul(g, wide::Exp(x)); });
    case ElementOp::kLog:
      return Map<2>(d, row, [](VF g, VF x) { return hn::Div(g, x); });
    case ElementOp::kSin:
      return Map<2>(w, row, [](VW g, VW x) { return hn::Mul(g, wide::SinOf(x, 1)); });
    case ElementOp::kCos:
      return Map<2>(w, row, [](VW g, VW x) { return hn::Mul(hn::Neg(g), wide::SinOf(x, 0)); });
    case ElementOp::kTanh:
      return Map<2>(w, row, [](VW g, VW x) {  // 4 e / (1 + e)^2, e = e^-2|x|
        const VW e = wide::Exp(hn::Mul(Number(-2), hn::Abs(x)));
        const VW sum = hn::Add(Number(1), e);
        return hn::Mul(g, hn::Div(hn::Mul(Number(4), e), hn::Mul(sum, sum)));
      });
    case ElementOp::kSigmoid:
      return Map<2>(w, row, [](VW g, VW x) {
        const VW e = wide::Exp(hn::Neg(hn::Abs(x)));
        const VW sum = hn::Add(Number(1), e);
        return hn::Mul(g, hn::Div(e, hn::Mul(sum, sum)));
      });
    case ElementOp::kLogSigmoid:
      return Map<2>(w, row, [](VW g, VW x) { return hn::Mul(g, wide::Sigmoid(hn::Neg(x))); });
    case ElementOp::kSoftplus:
      return Map<2>(w, row, [](VW g, VW x) { return hn::Mul(g, wide::Sigmoid(x)); });
    case ElementOp::kRelu:
      return Map<2>(d, row, [=](VF g, VF x) { return hn::IfThenElseZero(hn::Gt(x, zero), g); });
    case ElementOp::kReluSquared:
      return Map<2>(w, row, [](VW g, VW x) {
        return hn::IfThenElseZero(hn::Gt(x, Number(0)), hn::Mul(g, hn::Add(x, x)));
      });
    case ElementOp::kRelu6: {
      const VF six = hn::Set(d, 6.0f);
      return Map<2>(d, row, [=](VF g, VF x) {
        return hn::IfThenElseZero(hn::And(hn::Gt(x, zero), hn::Lt(x, six)), g);
      });
    }
    case ElementOp::kEluPlusOne:
      return Map<2>(w, row, [](VW g, VW x) {
        return hn::IfThenElse(hn::Gt(x, Number(0)), g, hn::Mul(g, wide::Exp(x)));
      });
    case ElementOp::kSilu:
      return Map<2>(w, row, [](VW g, VW x) {
        const VW y = Cut(x, 200);
        return hn::Mul(g, SlopeOfGated(y, /*u=*/y, /*du=*/Number(1)));
      });
    case ElementOp::kGelu:
      return Map<2>(w, row, [](VW g, VW x) {
        const VW y = Cut(x, 30);
        return hn::Mul(g, hn::MulAdd(y, wide::NormalDensity(y), wide::NormalCdf(y)));
      });
    case ElementOp::kGeluTanh:
      return Map<2>(w, row, [](VW g, VW x) {
        const VW y = Cut(x, 30);
        const VW du =
            hn::MulAdd(Number(3 * 0.044715 * kGeluScale), hn::Mul(y, y), Number(kGeluScale));
        return hn::Mul(g, SlopeOfGated(y, GeluTanhArgument(y), du));
      });
    default:
      return;  // ops launches no derivative of operations of several operands
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
