// The CPU kernels of cumulative.
#include "kernels/cpu/primitives.h"

namespace attnd {

absl::Status CpuCumulative(CpuBackend&, Stream&, const CumulativeArgs&) {
  return absl::UnimplementedError("cumulative: is not built yet");
}

}  // namespace attnd
