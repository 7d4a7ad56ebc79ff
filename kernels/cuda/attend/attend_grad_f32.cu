#include "kernels/cuda/attend/attend_grad.cuh"
#include "kernels/cuda/attend/attend_grad_bias.cuh"
#include "kernels/cuda/attend/attend_grad_kernels.h"

namespace attnd::cuda::attend_grad {

GradKernels GradKernelsF32() {
  using T = float;
  constexpr int kFew = kGradUnits[0], kMany = kGradUnits[1];
  return {{{GradQueries<T, kFew, false>, GradQueries<T, kFew, true>},
           {GradQueries<T, kMany, false>, GradQueries<T, kMany, true>}},
          {{GradKeys<T, kFew, false>, GradKeys<T, kFew, true>},
           {GradKeys<T, kMany, false>, GradKeys<T, kMany, true>}},
          GradBiasTiles<T>,
          {},
          {}};
}

}  // namespace attnd::cuda::attend_grad
