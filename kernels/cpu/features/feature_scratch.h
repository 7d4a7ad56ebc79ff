// Where a thread of feature_rows keeps a row.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/core/integer.h"
#include "kernels/device/feature_rows.h"

namespace attnd {

// In floats, for the largest problem.
struct FeatureScratch {
  static constexpr int64_t kPart = 16;  // each part starts at a cache line
  int64_t row, features;

  explicit FeatureScratch(const FeatureRowsArgs& args) : row(0), features(0) {
    for (const FeatureRowsProblem& p : args.problems) {
      const int64_t D = p.x.shape[p.x.shape.rank - 1];
      row = std::max(row, RoundUp(D, kPart));
      features = std::max(features, RoundUp(args.features.Features(D), kPart));
    }
  }
  int64_t floats() const { return 9 * row + 2 * features; }
  float* X(float* from) const { return from; }
  float* R(float* from) const { return from + row; }       // 4 D
  float* DR(float* from) const { return from + 5 * row; }  // 4 D
  float* Phi(float* from) const { return from + 9 * row; }
  float* DPhi(float* from) const { return from + 9 * row + features; }
};

}  // namespace attnd
