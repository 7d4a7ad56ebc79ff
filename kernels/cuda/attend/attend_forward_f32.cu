#include "kernels/cuda/attend/attend_forward.cuh"

namespace attnd::cuda {

ForwardForm ForwardOfF32(int width, bool has_terms, bool has_relative) {
  return FormOf<float>(width, has_terms, has_relative);
}

}  // namespace attnd::cuda
