// How the memory that the process may use is shared out.
#pragma once

#include <cstdint>

namespace attnd {

// The worst case is
//   budget    what requests are charged: messages twice, as received and as copied, or workspace
// + buffers   gRPC's quota: messages as received, also of those who send more than they declare
// + retained  freed tensor memory that is kept for reuse
// + 192 MiB   the process itself, its patterns, log lines and connections.
// It fits `usable` bytes unless a larger budget is asked for. Honest messages, charged twice, take
// half of the budget at most; the quota is that and 64 MiB for windows of calls that are not read,
// more where memory is left over, up to the budget and 64 MiB.
struct MemorySplit {
  int64_t budget_bytes = 0, buffer_bytes = 0, retained_bytes = 0;
};

// `usable` 0: not known. `asked_budget` 0: half of the usable memory, less below 2 GiB.
MemorySplit SplitMemory(int64_t usable, int64_t asked_budget, int64_t most_retained);

}  // namespace attnd
