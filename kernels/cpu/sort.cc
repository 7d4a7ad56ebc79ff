// The CPU kernels of sort.
#include "kernels/cpu/primitives.h"

namespace attnd {

absl::Status CpuSort(CpuBackend&, Stream&, const SortArgs&) {
  return absl::UnimplementedError("sort: is not built yet");
}

}  // namespace attnd
