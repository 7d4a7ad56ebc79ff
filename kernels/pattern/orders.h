// Gather orders: the rows of a sequence in slots.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace attnd {

// The row in each slot; -1: none.
using RowOrder = std::vector<int32_t>;

// Rows [0, n) sorted by ((row + offset) mod modulus, row): the rows of a residue class lie side by
// side.
RowOrder ResidueOrder(int64_t n, int64_t offset, int64_t modulus);
// `order`, empty slots up to a tile border, then `more`: rows that stand once more (globals,
// summaries) or rows of a second source.
RowOrder Appended(const RowOrder& order, std::span<const int32_t> more);
// The same of rows [0, n).
RowOrder AppendedOrder(int64_t n, std::span<const int32_t> appended);
// Cells of a row-major grid with `axis` innermost: a line along the axis is one stretch.
RowOrder LineOrder(std::span<const int64_t> grid, int64_t axis);
// Cells between neighbours along `axis`.
int64_t StepAlong(std::span<const int64_t> grid, int64_t axis);
// The coordinate along `axis` of each cell, in row-major order.
std::vector<int32_t> CoordinatesAlong(std::span<const int64_t> grid, int64_t axis);
// Pixels of a height x width image by (block, pixel), both in raster order; blocks at the right and
// lower border are short.
RowOrder ImageBlockOrder(int64_t height, int64_t width, int64_t block_height, int64_t block_width);
// Rows >= `rows` become -1: the cells of a grid beyond the length of a sequence.
void HideFrom(int64_t rows, RowOrder* order);

}  // namespace attnd
