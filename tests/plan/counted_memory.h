// Counts what operator new hands out, in this whole program.
#pragma once

#include <cstdint>

namespace attnd::testing {

// Bytes alive at the highest since ResetPeak, less those alive then.
void ResetPeak();
int64_t PeakBytes();

}  // namespace attnd::testing
