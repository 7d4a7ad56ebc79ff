// Ops::Pool and its gradient rules.
#include "kernels/ops/ops.h"

namespace attnd {

Tensor Ops::Pool(PoolOp, const Tensor&, const std::vector<std::vector<RowRange>>&) {
  Require(false, "pool", "is not built yet");
  return {};
}

}  // namespace attnd
