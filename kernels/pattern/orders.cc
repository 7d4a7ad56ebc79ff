#include "kernels/pattern/orders.h"

#include <algorithm>
#include <numeric>

#include "kernels/pattern/base/tiles.h"

namespace attnd {

RowOrder ResidueOrder(int64_t n, int64_t offset, int64_t modulus) {
  RowOrder order;
  order.reserve(n);
  // The first rows of the classes, in the order of classes: row 0 is of class `first`.
  const int64_t first = Remainder(offset, modulus), heads = std::min(n, modulus);
  const int64_t zero = std::min(modulus - first, heads);
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = h < heads - zero ? zero + h : h - (heads - zero); i < n; i += modulus) {
      order.push_back(static_cast<int32_t>(i));
    }
  }
  return order;
}

RowOrder Appended(const RowOrder& order, std::span<const int32_t> more) {
  const auto border = static_cast<size_t>(Tiles(static_cast<int64_t>(order.size())) * kTile);
  RowOrder appended;
  appended.reserve(border + more.size());
  appended = order;
  appended.resize(border, -1);
  appended.insert(appended.end(), more.begin(), more.end());
  return appended;
}

RowOrder AppendedOrder(int64_t n, std::span<const int32_t> appended) {
  RowOrder order(n);
  std::iota(order.begin(), order.end(), 0);
  return Appended(order, appended);
}

RowOrder LineOrder(std::span<const int64_t> grid, int64_t axis) {
  int64_t outer = 1;
  for (int64_t e = 0; e < axis; ++e) outer *= grid[e];
  const int64_t inner = StepAlong(grid, axis);
  RowOrder order;
  order.reserve(outer * inner * grid[axis]);
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t i = 0; i < inner; ++i) {
      for (int64_t a = 0; a < grid[axis]; ++a) {
        order.push_back(static_cast<int32_t>((o * grid[axis] + a) * inner + i));
      }
    }
  }
  return order;
}

int64_t StepAlong(std::span<const int64_t> grid, int64_t axis) {
  return std::accumulate(grid.begin() + axis + 1, grid.end(), int64_t{1}, std::multiplies<>());
}

std::vector<int32_t> CoordinatesAlong(std::span<const int64_t> grid, int64_t axis) {
  const int64_t inner = StepAlong(grid, axis);
  const int64_t cells = StepAlong(grid, -1);  // of the whole grid
  std::vector<int32_t> coordinates;
  coordinates.reserve(cells);
  for (int64_t x = 0; x < cells; ++x) {
    coordinates.push_back(static_cast<int32_t>(x / inner % grid[axis]));
  }
  return coordinates;
}

RowOrder ImageBlockOrder(int64_t height, int64_t width, int64_t block_height, int64_t block_width) {
  RowOrder order;
  order.reserve(height * width);
  for (int64_t top = 0; top < height; top += block_height) {
    for (int64_t left = 0; left < width; left += block_width) {
      for (int64_t y = top; y < std::min(top + block_height, height); ++y) {
        for (int64_t x = left; x < std::min(left + block_width, width); ++x) {
          order.push_back(static_cast<int32_t>(y * width + x));
        }
      }
    }
  }
  return order;
}

void HideFrom(int64_t rows, RowOrder* order) {
  for (int32_t& row : *order) row = row >= rows ? -1 : row;
}

}  // namespace attnd
