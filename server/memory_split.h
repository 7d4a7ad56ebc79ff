// How the memory that the process may use is divided.
#pragma once

#include <cstdint>

namespace attnd {

// The worst case is
//   budget    charged to requests: twice their messages (received and copied), or workspace
// + buffers   gRPC's quota: received messages, including those larger than declared
// + retained  freed tensor memory that is kept for reuse
// + 192 MiB   the process itself, its patterns, log lines and connections.
// It fits `usable` bytes unless a larger budget is requested. Messages of their declared size,
// charged twice, take at most half of the budget as received; the quota is that plus 64 MiB for
// windows of calls that are not read. Where memory is left over it is more, up to the budget plus
// 64 MiB.
struct MemorySplit {
  int64_t budget_bytes = 0, buffer_bytes = 0, retained_bytes = 0;
};

// `usable` 0: unknown. `asked_budget` 0: half of the usable memory, less below 2 GiB.
MemorySplit SplitMemory(int64_t usable, int64_t asked_budget, int64_t most_retained);

}  // namespace attnd
