// The CPU kernels of gather_rows.
#include "kernels/cpu/primitives.h"

namespace attnd {

absl::Status CpuGatherRows(CpuBackend&, Stream&, const GatherRowsArgs&) {
  return absl::UnimplementedError("gather_rows: is not built yet");
}

absl::Status CpuScatterRows(CpuBackend&, Stream&, const ScatterRowsArgs&) {
  return absl::UnimplementedError("gather_rows: is not built yet");
}

}  // namespace attnd
