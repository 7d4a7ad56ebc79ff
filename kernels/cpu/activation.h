// The operations of one operand, one element at a time.
#pragma once

#include "kernels/ops/elementwise.h"

namespace attnd {

float Activation(ElementOp op, float x);

}  // namespace attnd
