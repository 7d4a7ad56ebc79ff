// Words for accesses to device memory that a device or the host must not make.
#pragma once

#include <cstdint>

namespace emu {

// From here on, a segmentation fault in these addresses says what touched them, before the handler
// that was there first gets it.
void ExplainAccesses(const char* begin, int64_t bytes);

}  // namespace emu
