#include "kernels/cuda/attend/attend_forward.cuh"

namespace attnd::cuda {

ForwardForm ForwardOfBF16(int width, bool has_terms) {
  return FormOf<simt::bf16>(width, has_terms, false);
}

}  // namespace attnd::cuda
