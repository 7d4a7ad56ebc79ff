// The CPU kernels of matmul.
#include "kernels/cpu/primitives.h"

namespace attnd {

absl::Status CpuMatMul(CpuBackend&, Stream&, const MatMulArgs&) {
  return absl::UnimplementedError("matmul: is not built yet");
}

}  // namespace attnd
