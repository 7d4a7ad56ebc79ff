// The CPU kernels of pool.
#include "kernels/cpu/primitives.h"

namespace attnd {

absl::Status CpuPool(CpuBackend&, Stream&, const PoolArgs&) {
  return absl::UnimplementedError("pool: is not built yet");
}

}  // namespace attnd
