// Fetching memory that is needed soon.
#pragma once

#include <cstdint>

namespace attnd {

// Brings [from, from + bytes) to the second cache.
inline void Fetch(const char* from, int64_t bytes) {
  constexpr int64_t kLine = 64;
  for (int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(from + at, /*rw=*/0, 2);
  // To gcc a function that does nothing but prefetch has no effect: it would drop calls of it.
  asm volatile("");
}

}  // namespace attnd
