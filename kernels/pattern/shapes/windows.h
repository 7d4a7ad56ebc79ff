// Windows and bands of keys.
#pragma once

#include <cstdint>

#include "kernels/pattern/base/window.h"
#include "kernels/pattern/shapes/seq.h"

namespace attnd {

// Every key.
PatternSource AllKeys(const PatternSeq& seq);

// {lo <= j - i <= hi} over Nq queries and Nk keys; kUnbounded: no limit.
PatternSource BandSource(int64_t Nq, int64_t Nk, int64_t lo, int64_t hi);
PatternSource BandSource(int64_t Nq, int64_t Nk, int64_t lo, int64_t hi, const Lengths& lengths);

// As Window and BlockBand tell.
PatternSource WindowSource(int64_t Nq, int64_t Nk, const Window& window, const Lengths& lengths);
PatternSource BlockBandSource(int64_t Nq, int64_t Nk, const BlockBand& band,
                              const Lengths& lengths);

}  // namespace attnd
