// random_features: features of rows whose scalar products estimate a kernel, from products with
// random directions. For a row x and directions w_f, f < m,
//   u_f = alpha x . w_f,  h = alpha^2 |x|^2 / 2
//
//   kExp     F = m:   factor (e^(u - h - s) + eps),        s = max_f u_f
//   kCosh    F = 2m:  the same of u, then of -u,           s = max_f |u_f|
//   kCosSin  F = 2m:  factor e^(h - s) [cos u, sin u],     s = h
//   kSinCos  F = 2m:  factor [sin u, cos u],               no s
//   kMapped  F = m:   factor (map(u) + eps),               no s
//
// (Choromanski et al. 2021, lemma 1; Peng et al. 2021, theorem 1.) s is that of the row or, where
// rows share it, the largest of all rows of its head, and a constant for gradients.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/core/view.h"
#include "kernels/device/elementwise.h"

namespace attnd {

enum class RandomFeature : uint8_t { kExp, kCosh, kCosSin, kSinCos, kMapped };

struct RandomFeaturesParams {
  RandomFeature feature = RandomFeature::kExp;
  double alpha = 1, factor = 1;
  double eps = 0;                    // >= 0; 0 with waves
  bool shares_shift = false;         // where there is an s
  ElementOp map = ElementOp::kRelu;  // a unary operation but kAffine
  bool operator==(const RandomFeaturesParams&) const = default;
};

// x [B,H,N,D], a float dtype, last stride 1. w [1,Hw,m,D] float32, last stride 1, m >= 1: head h
// reads w of head h / (H / Hw). phi [B,H,N,F] float32, dense. shift [B,H,N,1], with shares_shift
// [B,H,1,1] (-inf of no row), float32, dense: s, NaN if a u is; not given() where
// there is no s.
struct RandomFeaturesProblem {
  View x, w, phi, shift;
};

// The gradient of x with s and w as constants. Where e^.. is far below eps it is as exact as
// elsewhere. dphi [B,H,N,F] a float dtype, last stride 1; dx [B,H,N,D] a float dtype, last
// stride 1.
struct RandomFeaturesGradProblem {
  RandomFeaturesProblem forward;  // with its outputs
  View dphi, dx;
};

struct RandomFeaturesArgs {
  RandomFeaturesParams params;
  std::vector<RandomFeaturesProblem> problems;
};

struct RandomFeaturesGradArgs {
  RandomFeaturesParams params;
  std::vector<RandomFeaturesGradProblem> problems;
};

inline bool HasWaves(RandomFeature feature) {
  return feature == RandomFeature::kCosSin || feature == RandomFeature::kSinCos;
}
inline bool HasShift(RandomFeature feature) {
  return feature != RandomFeature::kSinCos && feature != RandomFeature::kMapped;
}
// F of m directions.
inline int64_t FeatureCount(RandomFeature feature, int64_t m) {
  return feature == RandomFeature::kExp || feature == RandomFeature::kMapped ? m : 2 * m;
}

// For ForEachView of launch.h.
template <class F>
void ForEachView(const RandomFeaturesProblem& p, const F& f) {
  f(p.x), f(p.w), f(p.phi), f(p.shift);
}
template <class F>
void ForEachView(const RandomFeaturesGradProblem& p, const F& f) {
  ForEachView(p.forward, f);
  f(p.dphi), f(p.dx);
}

}  // namespace attnd
