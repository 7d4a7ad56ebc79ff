// The order in which elementwise visits memory: axes sorted by the output's strides and merged, cut
// into tiles of rows and columns.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "kernels/core/integer.h"
#include "kernels/core/view.h"

namespace attnd {

// Operand k of 0 .. 2 is a, b, c; 3 is the output.
struct ElementWalk {
  static constexpr int kViews = 4, kOut = 3;
  // Scratch of a view of a tile: 8 KB, so that all four fit L1.
  static constexpr int64_t kTileElements = 2048;
  // 32 rows of 64 columns are 32 x 64 whole pieces of cache lines on either side.
  static constexpr int64_t kTurnRows = 32, kTurnColumns = 64;

  int rank = 0;  // at least 2: .., rows, columns
  std::array<int64_t, kMaxRank + 2> size = {};
  std::array<std::array<int64_t, kMaxRank + 2>, kViews> stride = {};  // in elements
  int64_t tile_rows = 1, tile_columns = 1, row_tiles = 0, column_tiles = 0, tiles = 0;

  int64_t rows() const { return size[rank - 2]; }
  int64_t columns() const { return size[rank - 1]; }
  int64_t row_stride(int view) const { return stride[view][rank - 2]; }
  int64_t column_stride(int view) const { return stride[view][rank - 1]; }
  // Whether neighbours in memory lie along the rows' axis.
  bool IsTurned(int view) const { return column_stride(view) > 1 && row_stride(view) == 1; }
};

inline ElementWalk WalkOf(const std::array<const View*, ElementWalk::kViews>& views) {
  const View& out = *views[ElementWalk::kOut];
  ElementWalk walk;
  // Axes of one element are dropped; the others are sorted by falling strides of the output.
  std::array<int, kMaxRank> axes;
  int count = 0;
  for (int axis = 0; axis < out.shape.rank; ++axis) {
    if (out.shape[axis] != 1) axes[count++] = axis;
  }
  std::stable_sort(axes.begin(), axes.begin() + count,
                   [&](int x, int y) { return out.stride[x] > out.stride[y]; });
  const auto stride_of = [&](int view, int axis) {
    const View& v = *views[view];
    return v.given() && v.shape[axis] != 1 ? v.stride[axis] : 0;
  };
  for (int i = 0; i < count; ++i) {
    const int64_t n = out.shape[axes[i]];
    bool merges = walk.rank > 0;
    for (int v = 0; merges && v < ElementWalk::kViews; ++v) {
      merges = walk.stride[v][walk.rank - 1] == stride_of(v, axes[i]) * n;
    }
    if (!merges) walk.size[walk.rank++] = 1;
    walk.size[walk.rank - 1] *= n;
    for (int v = 0; v < ElementWalk::kViews; ++v) {
      walk.stride[v][walk.rank - 1] = stride_of(v, axes[i]);
    }
  }
  while (walk.rank < 2) {
    std::rotate(walk.size.begin(), walk.size.end() - 1, walk.size.end());
    for (auto& stride : walk.stride) std::rotate(stride.begin(), stride.end() - 1, stride.end());
    walk.size[0] = 1;
    walk.rank += 1;
  }
  // A turned view is dense along the axis of rows.
  for (int v = 0; v < ElementWalk::kOut; ++v) {
    if (walk.column_stride(v) <= 1) continue;
    for (int axis = 0; axis + 2 < walk.rank; ++axis) {
      if (walk.stride[v][axis] != 1 || walk.row_stride(v) == 1) continue;
      std::swap(walk.size[axis], walk.size[walk.rank - 2]);
      for (auto& stride : walk.stride) std::swap(stride[axis], stride[walk.rank - 2]);
    }
  }
  bool turned = false;
  for (int v = 0; v < ElementWalk::kOut; ++v) turned = turned || walk.IsTurned(v);
  if (turned) {
    walk.tile_rows = ElementWalk::kTurnRows;
    walk.tile_columns = ElementWalk::kTurnColumns;
  } else {
    walk.tile_columns = std::clamp<int64_t>(walk.columns(), 1, ElementWalk::kTileElements);
    walk.tile_rows = ElementWalk::kTileElements / walk.tile_columns;
  }
  walk.row_tiles = CeilDiv(walk.rows(), walk.tile_rows);
  walk.column_tiles = CeilDiv(walk.columns(), walk.tile_columns);
  walk.tiles = walk.row_tiles * walk.column_tiles;
  for (int axis = 0; axis + 2 < walk.rank; ++axis) walk.tiles *= walk.size[axis];
  return walk;
}

}  // namespace attnd
