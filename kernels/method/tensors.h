// What formulas do with the tensors of a request.
#pragma once

#include <string>

#include "kernels/method/method.h"

namespace attnd {

// The tensor that was sent, or an empty one.
Tensor Sent(const Inputs& in, const std::string& name);

// The same with leading dimensions of 1 up to `rank`. REQUIRES: no more dimensions than that.
Tensor WithRank(Ops& ops, const Tensor& x, int rank);

}  // namespace attnd
