// matmul as a formula calls it: Ops::MatMul. What it computes is in kernels/device/matmul.h.
#pragma once

#include <optional>

#include "kernels/device/matmul.h"

namespace attnd {

struct MatMulParams {
  double alpha = 1;
  std::optional<ElementOp> activation;
  DType dtype = DType::kF32;  // of the result
};

}  // namespace attnd
