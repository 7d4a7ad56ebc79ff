#include "kernels/methods/linear/maps.h"

#include "kernels/ops/feature_map.h"
#include "kernels/ops/ops.h"

namespace attnd {

void CheckDpfp(int64_t nu, int64_t D, Reasons* reasons) {
  if (nu > D) {
    reasons->Invalid("nu must be in 1..D = 1..", D, ", got ", nu);
  }
}

const std::vector<std::string>& LinearMapNames() {
  static const auto& names = *new std::vector<std::string>{
      "elu_plus_one", "relu",    "relu_squared", "squared", "abs",  "identity",
      "exp",          "sigmoid", "silu",         "gelu",    "dpfp", "softmax"};
  return names;
}

std::optional<ElementMap> ElementMapOf(LinearMap map) {
  switch (map) {
    case LinearMap::kEluPlusOne:
      return ElementMap{FeatureMap::kEluPlusOne, ElementOp::kEluPlusOne};
    case LinearMap::kRelu:
      return ElementMap{FeatureMap::kRelu, ElementOp::kRelu};
    case LinearMap::kReluSquared:
      return ElementMap{FeatureMap::kReluSquared, ElementOp::kReluSquared};
    case LinearMap::kSquared:
      return ElementMap{FeatureMap::kSquared, ElementOp::kSquare};
    case LinearMap::kAbs:
      return ElementMap{FeatureMap::kAbs, ElementOp::kAbs};
    case LinearMap::kIdentity:
      return ElementMap{FeatureMap::kIdentity, ElementOp::kCopy};
    case LinearMap::kExp:
      return ElementMap{FeatureMap::kExp, ElementOp::kExp};
    case LinearMap::kSigmoid:
      return ElementMap{FeatureMap::kSigmoid, ElementOp::kSigmoid};
    case LinearMap::kSilu:
      return ElementMap{FeatureMap::kSilu, ElementOp::kSilu};
    case LinearMap::kGelu:
      return ElementMap{FeatureMap::kGelu, ElementOp::kGelu};
    case LinearMap::kDpfp:
    case LinearMap::kSoftmax:
      return std::nullopt;
  }
  return std::nullopt;
}

Tensor PhiOf(Ops& ops, const Tensor& x, const LinearPhi& phi) {
  // e^x over its sum, which cannot overflow.
  if (phi.map == LinearMap::kExp && phi.norm == RowNorm::kSum) return ops.Softmax(x, -1);
  FeatureRows rows = {.norm = phi.norm, .eps = phi.eps};
  if (phi.map == LinearMap::kDpfp) {
    rows.nu = phi.nu;
  } else {
    rows.map = ElementMapOf(phi.map)->apply;
    if (phi.norm == RowNorm::kNone) return ops.Apply(rows.map, x);
  }
  return FeaturesOf(ops, x, rows);
}

}  // namespace attnd
