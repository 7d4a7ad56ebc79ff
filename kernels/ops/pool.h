// Lists of ranges for Ops::Pool. What pool computes is in kernels/device/pool.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/device/pool.h"

namespace attnd {

// The ranges of outputs that read each of `rows` rows: what turns a sum into its gradient.
std::vector<RowRange> TransposeRanges(std::span<const RowRange> ranges, int64_t rows);

// ceil(n / width) ranges of `width` rows, the last one cut.
std::vector<RowRange> Windows(int64_t n, int64_t width);
// m segments of floor(n / m) or one more rows, short ones first (Xiong et al. 2021, landmarks).
std::vector<RowRange> Segments(int64_t n, int64_t m);

}  // namespace attnd
