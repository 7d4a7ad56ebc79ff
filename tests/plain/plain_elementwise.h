// One element of elementwise in double.
#pragma once

#include "kernels/device/elementwise.h"

namespace attnd::testing {

// An operation of one operand, and its derivative.
double PlainElement(const ElementwiseArgs& args, double x);
double PlainSlope(const ElementwiseArgs& args, double x);

}  // namespace attnd::testing
