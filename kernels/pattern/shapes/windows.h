// Windows and bands of keys.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/pattern/shapes/seq.h"
#include "kernels/pattern/window.h"

namespace attnd {

// Every key.
PatternSource AllKeys(const PatternSeq& row);

// {lo <= j - i <= hi} over Nq queries and Nk keys; PatternBuilder::kUnbounded: no limit.
PatternSource BandSource(int64_t Nq, int64_t Nk, int64_t lo, int64_t hi);
PatternSource BandSource(int64_t Nq, int64_t Nk, int64_t lo, int64_t hi, const Lengths& lengths);

// As Window and BlockBand tell.
PatternSource WindowSource(int64_t Nq, int64_t Nk, const Window& window, const Lengths& lengths);
PatternSource BlockBandSource(int64_t Nq, int64_t Nk, const BlockBand& band,
                              const Lengths& lengths);

// Packed sequences: cu_q, cu_k [S+1], from 0, non-decreasing. Segment s holds the queries [cu_q[s],
// cu_q[s+1]) and the keys likewise. A query sees what `window` shows inside its own segment, in
// positions counted from the segment's start, with len_k(s) - len_q(s) added to the offset. Exact
// counts in O(S).
PatternSource PackedSource(std::span<const int32_t> cu_q, std::span<const int32_t> cu_k,
                           const Window& window);

}  // namespace attnd
