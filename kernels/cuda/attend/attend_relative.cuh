// Which distances between a tile of queries and a tile of keys there are.
#pragma once

#include <cstdint>

#include "kernels/cuda/attend/attend_params.h"
#include "kernels/cuda/simt.h"
#include "kernels/device/pattern.h"

namespace attnd::cuda {

// Floats from row to row of the products of 64 queries with 128 distances: rows of a fragment lie
// in different banks.
constexpr int kRelativeStride = 2 * static_cast<int>(kTile) + 4;

// Least and greatest row of a tile; empty: least > greatest.
struct RowRange {
  int64_t least, greatest;
};
// For all lanes of a warp.
SIMT_FN RowRange RangeOfRows(const ChosenRows& rows) {
  const int lane = threadIdx.x % 32;
  RowRange range = {INT64_MAX, -1};
  for (int i = lane; i < kTile; i += 32) {
    const int64_t row = rows.At(i);
    if (row < 0) continue;
    if (row < range.least) range.least = row;
    if (row > range.greatest) range.greatest = row;
  }
  for (int flip = 16; flip > 0; flip /= 2) {
    const int64_t least = __shfl_xor_sync(simt::kAllLanes, range.least, flip);
    const int64_t greatest = __shfl_xor_sync(simt::kAllLanes, range.greatest, flip);
    if (least < range.least) range.least = least;
    if (greatest > range.greatest) range.greatest = greatest;
  }
  return range;
}

// The rows of r that a pair of tiles reads: 128 from `first` on hold them all, or each pair
// computes its own product.
struct RelativeWindow {
  bool is_shared;
  int64_t first;

  SIMT_FN static RelativeWindow Of(const RowRange& queries, const RowRange& keys, int64_t offset,
                                   int64_t L) {
    if (queries.greatest < 0 || keys.greatest < 0) return {false, 0};
    const int64_t least = Clamp(queries.least + offset - keys.greatest, L);
    const int64_t greatest = Clamp(queries.greatest + offset - keys.least, L);
    return {greatest - least < 2 * kTile, least};
  }

 private:
  SIMT_FN static int64_t Clamp(int64_t delta, int64_t L) {
    return delta < 0 ? 0 : delta < L ? delta : L - 1;
  }
};

}  // namespace attnd::cuda
