#include "kernels/cuda/attend/attend_forward.cuh"

namespace attnd::cuda {

ForwardForm ForwardOfBF16(int width, bool has_terms, bool in_pairs) {
  return in_pairs ? PairsOf<simt::bf16>(width) : FormOf<simt::bf16>(width, has_terms, false);
}

}  // namespace attnd::cuda
