// elementwise: one operation on every element, with broadcasting.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/core/view.h"

namespace attnd {

// Exact to 2 units in the last place of float32; kAffine to 2 of its larger term. kLogAddExp and
// the derivatives of kSilu, kGelu and kGeluTanh cross 0 and may be off by 1e-9 there. NaN stays
// NaN, infinities give limits, denormal numbers may count as 0. Derivatives at a kink are 0, and
// where a function is flat its gradient is 0 whatever the incoming gradient is.
enum class ElementOp : uint8_t {
  // Of one operand.
  kCopy,    // also converts dtype; int32 to int32 too
  kAffine,  // alpha a + beta
  kAbs,
  kSquare,
  kSqrt,
  kReciprocal,  // 1 / a
  kExp,
  kLog,
  kSin,
  kCos,
  kTanh,
  kSigmoid,
  kLogSigmoid,
  kSoftplus,
  kRelu,
  kReluSquared,
  kRelu6,
  kEluPlusOne,  // a + 1 for a > 0, else e^a
  kSilu,
  kGelu,      // erf form
  kGeluTanh,  // tanh form
  // Of two.
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kSafeDivide,  // a / b, 0 where b = 0
  kMaximum,     // NaN if one is; the gradient flows to a where a > b, to b where b > a, half each
                // where equal
  kMinimum,
  kLogAddExp,  // log(e^a + e^b); -inf with -inf gives -inf
  kGreater,    // 1 where a > b, else 0; no gradient
  kEqual,      // 1 where a = b, else 0; no gradient
  // Of three.
  kSelect,  // b where a != 0, else c; elements not chosen may be NaN. No gradient to a
};

// How many operands: 1, 2 or 3.
int Operands(ElementOp op);

// a, b, c broadcast to out (a dimension of 1 repeats; ranks equal). Float dtypes and int32 (read as
// float32, exact below 2^24), any strides. out: a float dtype (kCopy of int32: also int32), any
// strides; may be a, b or c itself. With `derivative`: out = a df(b)/db for an op f of one operand;
// a is the incoming gradient.
struct ElementwiseProblem {
  View a, b, c, out;
};

struct ElementwiseArgs {
  ElementOp op = ElementOp::kCopy;
  bool derivative = false;
  float alpha = 1, beta = 0;  // of kAffine
  std::vector<ElementwiseProblem> problems;
};

// For ForEachView of launch.h.
template <class F>
void ForEachView(const ElementwiseProblem& p, const F& f) {
  for (const View* view : {&p.a, &p.b, &p.c, &p.out}) f(*view);
}

}  // namespace attnd
