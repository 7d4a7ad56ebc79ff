// The CPU kernels of softmax.
#include "kernels/cpu/primitives.h"

namespace attnd {

absl::Status CpuSoftmax(CpuBackend&, Stream&, const SoftmaxArgs&) {
  return absl::UnimplementedError("softmax: is not built yet");
}

}  // namespace attnd
