// The plain matmul in the arithmetic of `Real`: double for the truth, float for plain code of the
// kernel's precision.
#pragma once

#include "tests/plain/plain.h"

namespace attnd::testing {

// The result of one problem, not rounded to its dtype.
template <class Real>
PlainArray MatMulIn(const MatMulArgs& args, const MatMulProblem& problem);

extern template PlainArray MatMulIn<double>(const MatMulArgs&, const MatMulProblem&);
extern template PlainArray MatMulIn<float>(const MatMulArgs&, const MatMulProblem&);

}  // namespace attnd::testing
