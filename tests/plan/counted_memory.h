// Counts what operator new hands out, in this whole program.
#pragma once

#include <cstdint>

namespace attnd::testing {

// Since ResetAllocations.
struct Allocations {
  int64_t count = 0, bytes = 0;
  int64_t peak_bytes = 0;  // alive at the highest, less those alive then
};
void ResetAllocations();
Allocations AllocationsSoFar();

}  // namespace attnd::testing
