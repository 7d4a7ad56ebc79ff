// matmul as a formula calls it: Ops::MatMul. What it computes is in kernels/device/matmul.h.
#pragma once

#include <optional>

#include "kernels/device/matmul.h"

namespace attnd {

struct MatMulParams {
  double alpha = 1;
  std::optional<ElementOp> activation;
  DType dtype = DType::kF32;  // of the result
  // The formula returns the product, at most through views and copies. A run that is asked for
  // gradients alone then does not compute it: its gradient needs the operands alone. No activation
  // and no factor.
  bool is_returned = false;
};

}  // namespace attnd
