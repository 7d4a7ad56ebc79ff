// Visible pairs and tiles in closed form.
#pragma once

#include <cstdint>

#include "kernels/pattern/pattern.h"

namespace attnd {

// Sum of clamp(W floor((i + offset) / W) + shift, 0, limit) over i in [0, n).
double SteppedSum(int64_t n, int64_t offset, int64_t W, int64_t shift, int64_t limit);

// The same pairs of Nq x Nk in numbers that cannot overflow and that are equal for equal patterns
// (where that is cheap to see).
Window Canonical(int64_t Nq, int64_t Nk, Window w);

// Of a canonical window. Pairs are exact. Tiles are exact where it moves by keys or by whole tiles,
// else counted in at most 64 rows of tiles that are spread evenly.
double WindowPairs(const Lengths& n, const Window& w);
double WindowTiles(const Lengths& n, const Window& w);

}  // namespace attnd
