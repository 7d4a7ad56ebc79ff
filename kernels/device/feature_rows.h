// feature_rows: the features of a kernel method, of every row, divided by their norm.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/core/view.h"
#include "kernels/device/elementwise.h"

namespace attnd {

// A row whose norm is 0 gives zeros and a zero gradient.
enum class RowNorm : uint8_t {
  kNone,
  kSum,
  // max(sqrt(sum of squares + eps), floor) + offset; without a gradient of a root of 0 or below
  // the floor.
  kL2,
};

// Of a row x [D], phi [F] over its norm:
//   nu = 0: phi_i = map(x_i), F = D. map: of one operand, without alpha and beta.
//   nu > 0: dpfp, the deterministic parameter-free projection (Schlag et al. 2021, section 5). With
//     r = [relu(x), relu(-x)], block j = 1..nu holds r_i r_((i - j) mod 2D); F = 2 nu D.
struct FeatureRows {
  ElementOp map = ElementOp::kCopy;
  int64_t nu = 0;
  RowNorm norm = RowNorm::kNone;
  double eps = 0, floor = 0, offset = 0;  // >= 0

  int64_t Features(int64_t D) const { return nu > 0 ? 2 * nu * D : D; }
};

// x [.., D] and dout [.., F]: float dtypes, any strides. out float32, dense: [.., F], or with dout
// the gradient of x. float32 inside; sums of squares may leave it.
struct FeatureRowsProblem {
  View x, dout, out;
};

struct FeatureRowsArgs {
  FeatureRows features;
  bool derivative = false;  // dout is given
  std::vector<FeatureRowsProblem> problems;
};

// For ForEachView of launch.h.
template <class F>
void ForEachView(const FeatureRowsProblem& p, const F& f) {
  f(p.x), f(p.dout), f(p.out);
}

}  // namespace attnd
