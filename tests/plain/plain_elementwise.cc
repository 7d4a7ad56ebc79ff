#include "tests/plain/plain_elementwise.h"

#include <cmath>

#include "tests/plain/plain.h"

namespace attnd::testing {
namespace {

double Phi(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double Density(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * M_PI); }
double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double Softplus(double x) { return std::fmax(x, 0) + std::log1p(std::exp(-std::fabs(x))); }
double Tanh2(double x) { return 2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x); }

// x times a function of x that is 0 at -infinity.
double Gated(double x, double gate) { return x == -INFINITY ? 0 : x * gate; }

double Value(const ElementwiseArgs& args, double a, double b, double c) {
  const bool has_nan = std::isnan(a) || std::isnan(b);
  switch (args.op) {
    case ElementOp::kCopy:
      return a;
    case ElementOp::kAffine:
      return static_cast<double>(args.alpha) * a + args.beta;
    case ElementOp::kAbs:
      return std::fabs(a);
    case ElementOp::kSquare:
      return a * a;
    case ElementOp::kSqrt:
      return std::sqrt(a);
    case ElementOp::kReciprocal:
      return 1 / a;
    case ElementOp::kExp:
      return std::exp(a);
    case ElementOp::kLog:
      return std::log(a);
    case ElementOp::kSin:
      return std::sin(a);
    case ElementOp::kCos:
      return std::cos(a);
    case ElementOp::kTanh:
      return std::tanh(a);
    case ElementOp::kSigmoid:
      return Sigmoid(a);
    case ElementOp::kLogSigmoid:
      return std::isnan(a) ? a : -Softplus(-a);
    case ElementOp::kSoftplus:
      return std::isnan(a) ? a : Softplus(a);
    case ElementOp::kRelu:
      return a < 0 ? 0 : a;
    case ElementOp::kReluSquared:
      return a < 0 ? 0 : a * a;
    case ElementOp::kRelu6:
      return a < 0 ? 0 : a > 6 ? 6 : a;
    case ElementOp::kEluPlusOne:
      return a > 0 ? a + 1 : std::exp(a);
    case ElementOp::kSilu:
      return Gated(a, Sigmoid(a));
    case ElementOp::kGelu:
      return Gated(a, Phi(a));
    case ElementOp::kGeluTanh:
      return Gated(a, Sigmoid(Tanh2(a)));
    case ElementOp::kAdd:
      return a + b;
    case ElementOp::kSubtract:
      return a - b;
    case ElementOp::kMultiply:
      return a * b;
    case ElementOp::kDivide:
      return a / b;
    case ElementOp::kSafeDivide:
      return b == 0 ? 0 : a / b;
    case ElementOp::kMaximum:
      return has_nan ? NAN : std::fmax(a, b);
    case ElementOp::kMinimum:
      return has_nan ? NAN : std::fmin(a, b);
    case ElementOp::kLogAddExp:
      if (has_nan) return NAN;
      if (a == b) return a + std::log(2.0);
      return std::fmax(a, b) + std::log1p(std::exp(-std::fabs(a - b)));
    case ElementOp::kGreater:
      return a > b ? 1 : 0;
    case ElementOp::kEqual:
      return a == b ? 1 : 0;
    case ElementOp::kSelect:
      return a != 0 ? b : c;
  }
  return NAN;
}

double Slope(const ElementwiseArgs& args, double x) {
  const double e = std::exp(-std::fabs(x)), s = Sigmoid(x);
  switch (args.op) {
    case ElementOp::kCopy:
      return 1;
    case ElementOp::kAffine:
      return args.alpha;
    case ElementOp::kAbs:
      return x > 0 ? 1 : x < 0 ? -1 : x;
    case ElementOp::kSquare:
      return 2 * x;
    case ElementOp::kSqrt:
      return 0.5 / std::sqrt(x);
    case ElementOp::kReciprocal:
      return -1 / (x * x);
    case ElementOp::kExp:
      return std::exp(x);
    case ElementOp::kLog:
      return 1 / x;
    case ElementOp::kSin:
      return std::cos(x);
    case ElementOp::kCos:
      return -std::sin(x);
    case ElementOp::kTanh:
      return 4 * e * e / ((1 + e * e) * (1 + e * e));
    case ElementOp::kSigmoid:
      return e / ((1 + e) * (1 + e));
    case ElementOp::kLogSigmoid:
      return Sigmoid(-x);
    case ElementOp::kSoftplus:
      return s;
    case ElementOp::kRelu:
      return x > 0 ? 1 : 0;
    case ElementOp::kReluSquared:
      return x > 0 ? 2 * x : 0;
    case ElementOp::kRelu6:
      return x > 0 && x < 6 ? 1 : 0;
    case ElementOp::kEluPlusOne:
      return x > 0 ? 1 : std::exp(x);
    case ElementOp::kSilu:
      return std::isinf(x) ? (x > 0 ? 1 : 0) : s + x * s * Sigmoid(-x);
    case ElementOp::kGelu:
      return std::isinf(x) ? (x > 0 ? 1 : 0) : Phi(x) + x * Density(x);
    case ElementOp::kGeluTanh: {
      if (std::fabs(x) > 1e3) return x > 0 ? 1 : 0;
      const double t = Sigmoid(Tanh2(x)), rest = Sigmoid(-Tanh2(x));
      return t + x * t * rest * 2 * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
    }
    default:
      return NAN;
  }
}

}  // namespace

double PlainElement(const ElementwiseArgs& args, double x) { return Value(args, x, 0, 0); }
double PlainSlope(const ElementwiseArgs& args, double x) { return Slope(args, x); }

template <>
void PlainRun(const ElementwiseArgs& args) {
  for (const ElementwiseProblem& p : args.problems) {
    const PlainArray a = ReadView(p.a), b = ReadView(p.b), c = ReadView(p.c);
    PlainArray out(p.out.shape);
    ForEachIndex(out.shape, [&](const std::vector<int64_t>& index) {
      const double x = a.At(index), y = p.b.given() ? b.At(index) : 0;
      if (args.derivative) {
        const double slope = Slope(args, y);
        out.At(index) = slope == 0 ? 0 : x * slope;
      } else {
        out.At(index) = Value(args, x, y, p.c.given() ? c.At(index) : 0);
      }
    });
    WriteView(out, p.out);
  }
}

}  // namespace attnd::testing
