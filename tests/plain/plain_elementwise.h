// Unary operations of elementwise, but kAffine, and their derivatives in double.
#pragma once

#include "kernels/device/elementwise.h"

namespace attnd::testing {

double PlainMap(ElementOp op, double x);
double PlainSlope(ElementOp op, double x);

}  // namespace attnd::testing
