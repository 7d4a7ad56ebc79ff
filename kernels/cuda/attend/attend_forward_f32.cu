#include "kernels/cuda/attend/attend_forward.cuh"

namespace attnd::cuda {

ForwardForm ForwardOfF32(int width, bool has_terms, bool has_relative) {
  return FormOf<float>(width, has_terms, has_relative);
}
ForwardForm PlainOfF32(int width) { return PlainFormOf<float>(width, false); }

}  // namespace attnd::cuda
