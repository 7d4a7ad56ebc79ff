// Grids: lines along an axis, neighbourhoods of query blocks in raster order and in 2D.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/pattern/shapes/seq.h"

namespace attnd {

// Ho et al. 2019, section 3: cells on the line of cell i along `axis` of a row-major grid.
// `is_labelled`: the label of a pair is the coordinate of its key.
PatternSource AxialSource(const PatternSeq& seq, std::span<const int64_t> grid, int64_t axis,
                          bool is_labelled = false);
// Cells that differ in at most one coordinate: one part for each axis. The first holds the cell
// itself.
PatternParts AxialCross(const PatternSeq& seq, std::span<const int64_t> grid);

// Parmar et al. 2018, section 3.3 (1D): query blocks of lq positions and lm positions before them
// (and, if not causal, after them).
PatternSource ImageLocal1d(const PatternSeq& seq, int64_t lq, int64_t lm);
// The same in 2D; a causal row sees what comes before it in block-raster order.
struct ImageBlocks {
  int64_t height = 0, width = 0;
  int64_t block_height = 8, block_width = 16;
  int64_t flange_height = 8, flange_width = 16;
};
PatternSource ImageLocal2d(const PatternSeq& seq, const ImageBlocks& image);

}  // namespace attnd
