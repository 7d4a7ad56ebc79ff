// What formulas do with the tensors of a request.
#pragma once

#include <string>
#include <vector>

#include "kernels/method/method.h"

namespace attnd {

// The tensor that was sent, or an empty one.
Tensor Sent(const Inputs& in, const std::string& name);

// The same with leading dimensions of 1 up to `rank`. REQUIRES: no more dimensions than that.
Tensor WithRank(Ops& ops, const Tensor& x, int rank);

// x [B,Hx,N,D] with zeros in the rows beyond these lengths, which may hold NaN. x itself where no
// lengths were sent.
Tensor ZerosBeyond(Ops& ops, const Inputs& in, const Tensor& x, absl::string_view lengths);

// x as an output: dense, of this dtype and in these layouts. x itself where it lies so.
Tensor AsOutput(Ops& ops, const Tensor& x, DType dtype, const std::vector<Layout>& layouts);

}  // namespace attnd
