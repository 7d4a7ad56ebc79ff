// The CPU kernels of fft.
#include "kernels/cpu/primitives.h"

namespace attnd {

absl::Status CpuRealFft2(CpuBackend&, Stream&, const FftArgs&) {
  return absl::UnimplementedError("fft: is not built yet");
}

}  // namespace attnd
