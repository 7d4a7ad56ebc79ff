// Device memory of the driver as the source of a pool.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/device/memory.h"

namespace attnd::cuda {

// Of device `ordinal`, at most `most` bytes at a time. Neither allocating nor freeing waits for
// other streams.
std::unique_ptr<MemorySource> NewCudaMemory(int ordinal, int64_t most);

}  // namespace attnd::cuda
