// Windows: keys near a position, and how many pairs and tiles they are, in closed form.
#pragma once

#include <cstdint>

namespace attnd {

constexpr int64_t kUnbounded = INT64_MAX;  // no limit on this side of a band

// Queries [0, nq) and keys [0, nk) of a sequence that is shorter than its tensors.
struct Lengths {
  int64_t nq = 0, nk = 0;
};

// With p = i + offset, floor division and W = block, query i sees the keys
// floor(p/W) W - before <= j < (floor(p/W) + 1) W + after and, if causal, j <= p: windows that move
// by blocks or (W = 1) by keys.
struct Window {
  int64_t block = 1;              // >= 1
  int64_t before = 0, after = 0;  // >= 0; with W = 1 of any sign
  int64_t offset = 0;
  bool causal = false;
};

// Query i sees floor(p/W) - look_backward <= floor(j/W) <= floor(p/W) + look_forward.
struct BlockBand {
  int64_t block = 1;                            // >= 1
  int64_t look_backward = 0, look_forward = 0;  // >= 0
  int64_t offset = 0;
  bool causal = false;
};
Window WindowOf(const BlockBand& band);

// Sum of clamp(W floor((i + offset) / W) + shift, 0, limit) over i in [0, n).
double SteppedSum(int64_t n, int64_t offset, int64_t W, int64_t shift, int64_t limit);

// A window with the same pairs of Nq x Nk, in numbers that cannot overflow. Windows with equal
// pairs become equal where that is cheap to detect.
Window Canonical(int64_t Nq, int64_t Nk, Window w);

// Visible pairs and tiles of a canonical window. Pairs are exact. Tiles are exact if the window
// moves by keys or by whole tiles, else extrapolated from at most 64 evenly spread rows of tiles.
double WindowPairs(const Lengths& n, const Window& w);
double WindowTiles(const Lengths& n, const Window& w);

// {lo <= j - i <= hi}; kUnbounded: no limit.
Window BandWindow(int64_t lo, int64_t hi);
// Visible pairs of a band, exact, in constant time.
double BandPairs(const Lengths& lengths, int64_t lo, int64_t hi);

}  // namespace attnd
