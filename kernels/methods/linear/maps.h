// The feature maps phi of linear attention.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "kernels/device/elementwise.h"
#include "kernels/device/feature_rows.h"
#include "kernels/device/scan.h"
#include "kernels/ops/tensor.h"

namespace attnd {

class Ops;

enum class LinearMap : uint8_t {
  kEluPlusOne,
  kRelu,
  kReluSquared,
  kSquared,
  kAbs,
  kIdentity,
  kExp,
  kSigmoid,
  kSilu,
  kGelu,
  kDpfp,
  kSoftmax
};

// The rules of dpfp: nu is at most D, and bounded, since each of its nu blocks is a step of the
// formula and of its plan.
constexpr int64_t kMostNu = 64;
void CheckDpfp(int64_t nu, int64_t D, Reasons* reasons);

// Names in the API, in the order of LinearMap.
const std::vector<std::string>& LinearMapNames();

// A map that is one operation on every element: scan can apply it, and so can Ops::Apply.
struct ElementMap {
  FeatureMap scan;
  ElementOp apply;
};
// None: dpfp and softmax are more than that.
std::optional<ElementMap> ElementMapOf(LinearMap map);

struct LinearPhi {
  LinearMap map = LinearMap::kEluPlusOne;
  int64_t nu = 2;                 // of dpfp
  RowNorm norm = RowNorm::kNone;  // what divides each phi
  double eps = 0;                 // of kL2
};
// phi of every row of x [..,D] -> [..,F], float32. REQUIRES: not softmax.
Tensor PhiOf(Ops& ops, const Tensor& x, const LinearPhi& phi);

}  // namespace attnd
