// Feature maps of scan and their derivatives, accurate relative to themselves.
#pragma once

#include <cmath>

#include "kernels/cuda/simt.h"
#include "kernels/device/scan.h"

// Called, not inlined: once for an element that many multiply-adds use.
#define SCAN_CALL __device__ __noinline__ inline

namespace attnd::cuda {

SIMT_FN float Sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return x > 0 ? 1 / (1 + e) : e / (1 + e);
}

// P(X <= x) of the standard normal distribution. erfc of a rounded argument would lose digits in
// the tail: the rest of the argument is applied to first order.
SIMT_FN float NormalCdf(float x) {
  constexpr float kHigh = 0.70710677f, kLow = 1.21016175e-8f;  // 1 / sqrt(2)
  const float y = -x * kHigh;
  const float rest = fmaf(-x, kHigh, -y) - x * kLow;
  return 0.5f * (erfcf(y) - 1.12837917f * expf(-y * y) * rest);
}

// phi(x); kExp: e^(x - shift), 0 where nothing but -inf was seen.
SCAN_CALL float Feature(FeatureMap map, float x, float shift, float offset) {
  switch (map) {
    case FeatureMap::kEluPlusOne:
      return x > 0 ? x + 1 : expf(x);
    case FeatureMap::kRelu:
      return x > 0 ? x : 0;
    case FeatureMap::kReluSquared:
      return x > 0 ? x * x : 0;
    case FeatureMap::kSquared:
      return x * x;
    case FeatureMap::kAbs:
      return fabsf(x);
    case FeatureMap::kIdentity:
      return x + offset;
    case FeatureMap::kExp:
      return expf(x - (shift == -INFINITY ? 0 : shift));
    case FeatureMap::kSigmoid:
      return Sigmoid(x);
    case FeatureMap::kSilu:
      return x * Sigmoid(x);
    case FeatureMap::kGelu:
      return x * NormalCdf(x);
  }
  return 0;
}

// phi'(x); kExp: relative to the same shift as `phi`.
SCAN_CALL float Derivative(FeatureMap map, float x, float phi) {
  switch (map) {
    case FeatureMap::kEluPlusOne:
      return x > 0 ? 1 : phi;
    case FeatureMap::kRelu:
      return x > 0 ? 1 : 0;
    case FeatureMap::kReluSquared:
      return x > 0 ? 2 * x : 0;
    case FeatureMap::kSquared:
      return 2 * x;
    case FeatureMap::kAbs:
      return x > 0 ? 1 : (x < 0 ? -1 : 0);
    case FeatureMap::kIdentity:
      return 1;
    case FeatureMap::kExp:
      return phi;
    case FeatureMap::kSigmoid:
      return phi * Sigmoid(-x);
    case FeatureMap::kSilu: {
      const float s = Sigmoid(x);
      return s + x * s * Sigmoid(-x);
    }
    case FeatureMap::kGelu:
      return NormalCdf(x) + x * expf(-0.5f * x * x) * 0.39894228f;
  }
  return 0;
}

}  // namespace attnd::cuda
