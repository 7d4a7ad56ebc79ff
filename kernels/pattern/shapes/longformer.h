// Sliding windows, dilated or not, with global tokens.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/pattern/shapes/seq.h"

namespace attnd {

// Beltagy et al. 2020, section 3.1. `globals`: positions that are global, ascending, in [0, Nk).
// Local rows see |p - j| <= window dilation with (p - j) mod dilation = 0, and every global key.
PatternSource LongformerLocal(const PatternSeq& row, int64_t window, int64_t dilation,
                              std::span<const int32_t> globals);
// Global rows see every key.
PatternSource LongformerGlobal(const PatternSeq& row, std::span<const int32_t> globals);
// All rows, where both kinds read the same q, k and v.
PatternSource LongformerBoth(const PatternSeq& row, int64_t window, int64_t dilation,
                             std::span<const int32_t> globals);

}  // namespace attnd
