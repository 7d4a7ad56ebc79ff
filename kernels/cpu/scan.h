// Chunked linear attention on the CPU: Backend::Scan and Backend::ScanGrad.
#pragma once

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace attnd {

class CpuBackend;

// A work item is one (problem, batch row, kv head): it walks the sequence once with the state
// S [D,Dv], z [D], which the query heads of its group share. Scratch is a fixed size a thread; the
// backward adds three floats per query of a group. Nothing else grows with N.
[[nodiscard]] absl::Status CpuScan(CpuBackend& backend, Stream& stream, const ScanArgs& args);
[[nodiscard]] absl::Status CpuScanGrad(CpuBackend& backend, Stream& stream,
                                       const ScanGradArgs& args);

}  // namespace attnd
