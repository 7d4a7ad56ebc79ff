// e(d) = [sin(d w_m), cos(d w_m)], w_m = 10000^(-2 m / size), for distances d = 0, 1, ... (Vaswani
// et al. 2017, section 3.5, in the order of Dai et al. 2019: all sines first).
#pragma once

#include <vector>

#include "kernels/ops/ops.h"

namespace attnd {

struct Sinusoids {
  Tensor sines, cosines;  // [1,rows,size/2]
};

// Constants, from tables of about 2 sqrt(rows) size numbers. Per problem; sizes are even.
Sinusoids SinusoidsOf(Ops& ops, const std::vector<int64_t>& rows,
                      const std::vector<int64_t>& sizes);

}  // namespace attnd
