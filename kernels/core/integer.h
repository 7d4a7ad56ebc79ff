// Division of integers that rounds up or down.
#pragma once

#include <cstdint>

namespace attnd {

// REQUIRES: a >= 0, b > 0, a + b within int64.
constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The least multiple of `unit` that is >= n. REQUIRES: as CeilDiv.
constexpr int64_t RoundUp(int64_t n, int64_t unit) { return CeilDiv(n, unit) * unit; }

// Rounds down, for any a. REQUIRES: b > 0.
constexpr int64_t FloorDiv(int64_t a, int64_t b) { return a >= 0 ? a / b : -CeilDiv(-a, b); }

}  // namespace attnd
