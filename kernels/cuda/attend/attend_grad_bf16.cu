#include "kernels/cuda/attend/attend_grad.cuh"
#include "kernels/cuda/attend/attend_grad_bias.cuh"
#include "kernels/cuda/attend/attend_grad_kernels.h"
#include "kernels/cuda/attend/attend_grad_wide.cuh"

namespace attnd::cuda::attend_grad {

GradKernels GradKernelsBF16() {
  using T = simt::bf16;
  constexpr int kFew = kGradUnits[0], kMany = kGradUnits[1];
  return {{{GradQueries<T, kFew, false>, GradQueries<T, kFew, true>},
           {GradQueries<T, kMany, false>, GradQueries<T, kMany, true>}},
          {{GradKeys<T, kFew, false>, GradKeys<T, kFew, true>},
           {GradKeys<T, kMany, false>, GradKeys<T, kMany, true>}},
          GradBiasTiles<T>,
          {GradWideQueries<T, 64>, GradWideQueries<T, 128>},
          {GradWideKeys<T, 64>, GradWideKeys<T, 128>}};
}

}  // namespace attnd::cuda::attend_grad
