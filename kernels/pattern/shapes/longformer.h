// Sliding windows, dilated or not, with global tokens.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/pattern/shapes/seq.h"

namespace attnd {

// Keys with |p - j| <= window dilation and (p - j) mod dilation = 0.
struct DilatedWindow {
  int64_t window = 1, dilation = 1;
};

// Beltagy et al. 2020, section 3.1. `globals`: positions that are global, ascending, in [0, Nk).
// Local rows see the window and every global key, global rows see every key.
PatternSource LongformerSource(const PatternSeq& seq, const DilatedWindow& window,
                               std::span<const int32_t> globals, Half half);

}  // namespace attnd
