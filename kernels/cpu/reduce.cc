// The CPU kernels of reduce.
#include "kernels/cpu/primitives.h"

namespace attnd {

absl::Status CpuReduce(CpuBackend&, Stream&, const ReduceArgs&) {
  return absl::UnimplementedError("reduce: is not built yet");
}

}  // namespace attnd
