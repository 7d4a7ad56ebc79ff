// The CPU kernels of depthwise_conv.
#include "kernels/cpu/primitives.h"

namespace attnd {

absl::Status CpuDepthwiseConv(CpuBackend&, Stream&, const DepthwiseConvArgs&) {
  return absl::UnimplementedError("depthwise_conv: is not built yet");
}

absl::Status CpuDepthwiseConvGrad(CpuBackend&, Stream&, const DepthwiseConvGradArgs&) {
  return absl::UnimplementedError("depthwise_conv: is not built yet");
}

}  // namespace attnd
