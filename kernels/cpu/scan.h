// Attention through a state on the CPU: Backend::Scan and Backend::ScanGrad.
#pragma once

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace attnd {

class CpuBackend;

// A work item is one (problem, batch row, kv head): it walks the sequence with the state S [D,Dv],
// z [D], which the query heads of its group share, one token after the other; while a block of
// tokens passes by, a piece of the state waits in registers. That costs the multiply-adds of the
// definition and no more, where a chunk's triangle of pairs would add half of them again (D 64).
//
// Columns of the state need no other columns, and in the gradients of q and k features no other
// features: a head that is more than a thread's share of the list is cut there, and every number is
// made alike however it is cut. The backward of a cut head takes two launches (delta rule: three),
// since all its jobs need the rows' normalisers.
//
// Scratch of the forward is a fixed size a thread. The backward keeps O(N): 2 floats per query of a
// group; the delta rule 2 Dv + D per key; dlog_decay D per query and (Dv + 1) D every 256 keys.
[[nodiscard]] absl::Status CpuScan(CpuBackend& backend, Stream& stream, const ScanArgs& args);
[[nodiscard]] absl::Status CpuScanGrad(CpuBackend& backend, Stream& stream,
                                       const ScanGradArgs& args);

}  // namespace attnd
