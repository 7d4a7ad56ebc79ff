#include "kernels/cuda/attend/attend_forward.cuh"

namespace attnd::cuda {

ForwardForm ForwardOfF16(int width, bool has_terms, bool in_pairs) {
  return in_pairs ? PairsOf<simt::f16>(width) : FormOf<simt::f16>(width, has_terms, false);
}

}  // namespace attnd::cuda
