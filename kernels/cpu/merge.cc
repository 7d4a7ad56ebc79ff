// The CPU kernels of merge.
#include "kernels/cpu/primitives.h"

namespace attnd {

absl::Status CpuMerge(CpuBackend&, Stream&, const MergeArgs&) {
  return absl::UnimplementedError("merge: is not built yet");
}

absl::Status CpuMergeGrad(CpuBackend&, Stream&, const MergeGradArgs&) {
  return absl::UnimplementedError("merge: is not built yet");
}

}  // namespace attnd
