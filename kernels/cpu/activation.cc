#include "kernels/cpu/activation.h"

#include <cmath>

namespace attnd {
namespace {

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double Softplus(double x) { return std::log1p(std::exp(-std::abs(x))) + (x > 0 ? x : 0); }

double Of(ElementOp op, double x) {
  switch (op) {
    case ElementOp::kAbs:
      return std::abs(x);
    case ElementOp::kSquare:
      return x * x;
    case ElementOp::kSqrt:
      return std::sqrt(x);
    case ElementOp::kReciprocal:
      return 1 / x;
    case ElementOp::kExp:
      return std::exp(x);
    case ElementOp::kLog:
      return std::log(x);
    case ElementOp::kSin:
      return std::sin(x);
    case ElementOp::kCos:
      return std::cos(x);
    case ElementOp::kTanh:
      return std::tanh(x);
    case ElementOp::kSigmoid:
      return Sigmoid(x);
    case ElementOp::kLogSigmoid:
      return -Softplus(-x);
    case ElementOp::kSoftplus:
      return Softplus(x);
    case ElementOp::kRelu:
      return x > 0 || x != x ? x : 0;
    case ElementOp::kReluSquared:
      return x > 0 || x != x ? x * x : 0;
    case ElementOp::kRelu6:
      return x > 6 ? 6 : x > 0 || x != x ? x : 0;
    case ElementOp::kEluPlusOne:
      return x > 0 ? x + 1 : std::exp(x);
    case ElementOp::kSilu:
      return x * Sigmoid(x);
    case ElementOp::kGelu:
      return 0.5 * x * (1 + std::erf(x * 0.70710678118654752));
    case ElementOp::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
    default:
      return x;
  }
}

}  // namespace

float Activation(ElementOp op, float x) { return static_cast<float>(Of(op, x)); }

}  // namespace attnd
