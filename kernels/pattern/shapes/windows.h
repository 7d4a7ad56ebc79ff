// Windows and bands of keys.
#pragma once

#include <cstdint>

#include "kernels/pattern/base/window.h"
#include "kernels/pattern/shapes/seq.h"

namespace attnd {

// Every key and, if causal, those with j <= p.
PatternSource AllKeys(const PatternSeq& seq);

// Pairs with lo <= j - i <= hi of Nq queries and Nk keys; kUnbounded: no limit.
PatternSource BandSource(int64_t Nq, int64_t Nk, int64_t lo, int64_t hi);
PatternSource BandSource(int64_t Nq, int64_t Nk, int64_t lo, int64_t hi, const Lengths& lengths);

// The pairs of Window and BlockBand.
PatternSource WindowSource(int64_t Nq, int64_t Nk, const Window& window, const Lengths& lengths);
PatternSource BlockBandSource(int64_t Nq, int64_t Nk, const BlockBand& band,
                              const Lengths& lengths);

}  // namespace attnd
