// What the caches of patterns hold, for who watches over memory.
#pragma once

#include <cstdint>

namespace attnd {

// Bytes of the patterns that all caches of this process keep, keys included. Any thread.
int64_t CachedPatternBytes();

}  // namespace attnd
