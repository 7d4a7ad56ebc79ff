// The kernels over tiles of the gradient of attend, a file for each type of elements: they take
// long to compile.
#pragma once

#include "kernels/cuda/attend/attend_grad_data.h"
#include "kernels/cuda/launch.h"

namespace attnd::cuda::attend_grad {

constexpr int kGradUnits[] = {1, 2};  // pieces of 64 columns that a block sums

struct GradKernels {
  // [of kGradUnits][whether scores have terms]
  void (*queries[2][2])(Problems<GradData>, int64_t round);  // of PairRange
  void (*keys[2][2])(Problems<GradData>, int64_t round);
  void (*bias)(Problems<GradData>, int64_t round);  // of BiasShares
  // By wide tiles of 64 columns and of 128; null for float32.
  void (*wide_queries[2])(Problems<GradData>, int64_t round);
  void (*wide_keys[2])(Problems<GradData>, int64_t round);
};
GradKernels GradKernelsF32();
GradKernels GradKernelsF16();
GradKernels GradKernelsBF16();

}  // namespace attnd::cuda::attend_grad
