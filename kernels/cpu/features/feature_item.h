// One work item of random_features and the memory it needs. Plain data, shared by all SIMD targets.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/core/integer.h"
#include "kernels/cpu/simd/targets.h"
#include "kernels/device/random_features.h"

namespace attnd {

// Rows of one head. `grad` is null in the forward.
struct FeatureItem {
  const RandomFeaturesParams* params = nullptr;
  const RandomFeaturesProblem* problem = nullptr;
  const RandomFeaturesGradProblem* grad = nullptr;
  int64_t b = 0, h = 0, begin = 0, end = 0;
  // Panels of the head's directions for x w^T, [m / panel][D][panel], and for products with w,
  // [D / panel][m][panel].
  const float* by_direction = nullptr;
  const float* by_column = nullptr;
  // With shares_shift: s of the rows of the head.
  float* row_shift = nullptr;
  float* scratch = nullptr;
};

// Whether a gradient needs u: others follow from phi, unless eps hides what is far below it.
inline bool NeedsProducts(const RandomFeaturesParams& o) {
  const bool is_other_map = o.feature == RandomFeature::kMapped && o.map != ElementOp::kRelu;
  return is_other_map || o.eps != 0;
}

// What an item holds at a time, in floats: rows [x_pitch] of alpha x, [u_pitch] of products,
// [x_pitch] of dx, and two halves of a row of features and of its gradient.
struct FeatureLayout {
  static constexpr int64_t kMostRows = 64;

  int64_t rows, x_pitch, u_pitch;

  FeatureLayout(const Shape& x, const Shape& w)
      : rows(Block(w[2])), x_pitch(Pitch(x[3])), u_pitch(Pitch(w[2])) {}

  // Products of 64 rows with 256 directions are 64 KB: with the directions they stay in L2.
  static int64_t Block(int64_t m) {
    constexpr int64_t kFloats = 16384, kLeast = 16;
    return std::clamp(kFloats / m / 4 * 4, kLeast, kMostRows);
  }
  // Whole vectors of the widest target, an odd number of cache lines: a power of two would put a
  // column into few sets of L1.
  static int64_t Pitch(int64_t n) { return (CeilDiv(n, 16) | 1) * 16; }

  // Where they lie.
  int64_t x() const { return 0; }
  int64_t u() const { return rows * x_pitch; }
  int64_t dx() const { return u() + rows * u_pitch; }
  int64_t half() const { return dx() + rows * x_pitch; }
  int64_t floats() const { return half() + 4 * u_pitch; }
};

// Kernels of an instruction set. A panel of directions is `panel` wide.
struct FeatureKernels {
  int64_t panel;
  // Panel number `index` of w [m,D], whose rows are `row` floats apart.
  void (*pack)(const float* w, int64_t row, int64_t m, int64_t D, bool by_direction, int64_t index,
               float* to);
  // Writes phi, and s of each row unless rows share it: then phi is without factor and eps. Returns
  // the largest s of the rows.
  float (*forward)(const FeatureItem& item);
  // Makes phi relative to the shared s, once that is written.
  void (*share)(const FeatureItem& item);
  void (*backward)(const FeatureItem& item);
};
FeatureKernels FeatureKernelsOf(Isa isa);

}  // namespace attnd
