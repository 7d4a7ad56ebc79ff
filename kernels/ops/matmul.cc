// Ops::MatMul and its gradient rule.
#include "kernels/ops/ops.h"

namespace attnd {

Tensor Ops::MatMul(const Tensor&, const Tensor&, const MatMulParams&, const Tensor&,
                   const Tensor&) {
  Require(false, "matmul", "is not built yet");
  return {};
}

}  // namespace attnd
