// What reduce, softmax and cumulative share: a problem along one axis as independent columns, in
// tiles, and long axes in chunks.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/core/integer.h"
#include "kernels/core/view.h"

namespace attnd {

// x, out (which may have 1 in the axis) and a third view, if there is one. All cuts depend on the
// shapes and strides alone.
struct AlongWalk {
  static constexpr int kX = 0, kOut = 1, kThird = 2, kViews = 3;
  // Columns of a tile.
  static constexpr int64_t kWidth = 64;
  // Rows that are read at a time: 8 KB.
  static constexpr int64_t kBlock = 32;
  // An axis that is dense in memory is reduced in place, if it has that many elements.
  static constexpr int64_t kDenseAxis = 32;
  // Rows of a chunk of columns: 1 MB, half of L2. A dense axis is cut into chunks of 256 KB.
  static constexpr int64_t kChunkRows = 4096, kDenseChunk = 65536;
  // Elements of a work item, about: 64 KB.
  static constexpr int64_t kItem = 16384;

  int64_t n = 0;          // elements of the axis
  bool is_dense = false;  // the axis is reduced in place; else kWidth columns side by side
  int64_t chunk = 0;      // elements of the axis in a chunk
  int64_t chunks = 1;     // at least 1
  int64_t columns = 1;    // side by side; 1 if is_dense
  int64_t tiles = 1;      // of columns
  int64_t outer = 1;      // independent groups of columns
  int outer_rank = 0;
  std::array<int64_t, kMaxRank> size = {};
  std::array<std::array<int64_t, kMaxRank>, kViews> stride = {};
  std::array<int64_t, kViews> axis_stride = {}, column_stride = {};

  struct Unit {
    int64_t chunk, tile, outer;
    std::array<int64_t, kViews> offset;  // elements to the tile's first column, row 0
  };
  // Units of work: chunks of tiles of columns.
  int64_t units() const { return outer * tiles * chunks; }
  int64_t outputs() const { return outer * columns; }
  int64_t unit_elements() const { return std::min(n, chunk) * std::min(columns, kWidth); }
  Unit At(int64_t number) const {
    Unit unit;
    // A division takes as long as a short row.
    unit.chunk = chunks > 1 ? number % chunks : 0;
    if (chunks > 1) number /= chunks;
    unit.tile = tiles > 1 ? number % tiles : 0;
    unit.outer = tiles > 1 ? number / tiles : number;
    for (int v = 0; v < kViews; ++v) unit.offset[v] = unit.tile * kWidth * column_stride[v];
    int64_t rest = unit.outer;
    for (int i = outer_rank - 1; i >= 0; --i) {
      const int64_t index = i == 0 ? rest : rest % size[i];
      if (i > 0) rest /= size[i];
      for (int v = 0; v < kViews; ++v) unit.offset[v] += index * stride[v][i];
    }
    return unit;
  }
  int64_t width(int64_t tile) const { return std::min(kWidth, columns - tile * kWidth); }
};

// `columns_only`: even a dense axis is read as columns side by side. `third` is of x's shape.
inline AlongWalk AlongWalkOf(const View& x, const View& out, int axis, bool columns_only = false,
                             const View& third = View()) {
  AlongWalk walk;
  const auto strides = [&](int i) {
    return std::array<int64_t, AlongWalk::kViews>{x.stride[i], out.stride[i], third.stride[i]};
  };
  walk.n = x.shape[axis];
  walk.axis_stride = strides(axis);
  std::array<int, kMaxRank> axes;
  int count = 0;
  for (int i = 0; i < x.shape.rank; ++i) {
    if (i != axis && x.shape[i] != 1) axes[count++] = i;
  }
  std::stable_sort(axes.begin(), axes.begin() + count,
                   [&](int a, int b) { return x.stride[a] > x.stride[b]; });
  int& rank = walk.outer_rank;
  for (int i = 0; i < count; ++i) {
    const int64_t size = x.shape[axes[i]];
    const auto stride = strides(axes[i]);
    bool merges = rank > 0;
    for (int v = 0; merges && v < AlongWalk::kViews; ++v) {
      merges = walk.stride[v][rank - 1] == stride[v] * size;
    }
    if (!merges) walk.size[rank++] = 1;
    walk.size[rank - 1] *= size;
    for (int v = 0; v < AlongWalk::kViews; ++v) walk.stride[v][rank - 1] = stride[v];
    walk.outer *= size;
  }
  walk.is_dense = !columns_only && walk.axis_stride[0] == 1 && walk.n >= AlongWalk::kDenseAxis;
  if (!walk.is_dense && rank > 0) {
    --rank;
    walk.columns = walk.size[rank];
    for (int v = 0; v < AlongWalk::kViews; ++v) walk.column_stride[v] = walk.stride[v][rank];
    walk.outer = walk.columns == 0 ? 0 : walk.outer / walk.columns;
  }
  walk.tiles = CeilDiv(walk.columns, AlongWalk::kWidth);
  walk.chunk = walk.is_dense ? AlongWalk::kDenseChunk : AlongWalk::kChunkRows;
  walk.chunks = std::max<int64_t>(CeilDiv(walk.n, walk.chunk), 1);
  return walk;
}

// The index of a place of x or, given as -1 - place, of -x behind it.
inline int32_t IndexOf(int64_t place, int64_t n) {
  return static_cast<int32_t>(place < 0 ? n - 1 - place : place);
}

}  // namespace attnd
