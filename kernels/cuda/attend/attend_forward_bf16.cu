#include "kernels/cuda/attend/attend_forward.cuh"

namespace attnd::cuda {

ForwardForm ForwardOfBF16(int width, bool has_terms) {
  return FormOf<simt::bf16>(width, has_terms, false);
}
ForwardForm PlainOfBF16(int width, bool in_pairs) {
  return PlainFormOf<simt::bf16>(width, in_pairs);
}

}  // namespace attnd::cuda
