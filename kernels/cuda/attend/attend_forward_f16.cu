#include "kernels/cuda/attend/attend_forward.cuh"

namespace attnd::cuda {

ForwardForm ForwardOfF16(int width, bool has_terms) {
  return FormOf<simt::f16>(width, has_terms, false);
}
ForwardForm PlainOfF16(int width, bool in_pairs) { return PlainFormOf<simt::f16>(width, in_pairs); }

}  // namespace attnd::cuda
