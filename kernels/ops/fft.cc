// Ops::RealFft2.
#include "kernels/ops/ops.h"

namespace attnd {

Tensor Ops::RealFft2(const Tensor&) {
  Require(false, "fft", "is not built yet");
  return {};
}

}  // namespace attnd
