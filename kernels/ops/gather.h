// scatter as a formula calls it: Ops::Scatter. What it computes is in kernels/device/gather.h.
#pragma once

#include "kernels/ops/tensor.h"

namespace attnd {

struct ScatterParams {
  // [.., N] float32, leading dimensions as those of the result or 1: row n of it is divided by
  // element n, and 0 where that is 0. A constant. Empty: 1.
  Tensor divisor;
  // As in MatMulParams: not computed by a run that is asked for gradients alone.
  bool is_returned = false;
};

}  // namespace attnd
