// An axis that is not dense: a warp takes 32 lines side by side, and the warps of a block take
// turns along the axis.
#pragma once

#include "kernels/cuda/along/lines.h"
#include "kernels/cuda/fours.h"
#include "kernels/cuda/simt.h"

namespace attnd::cuda {

// This thread's line, and a chunk of it.
struct ColumnUnit {
  uint32_t line = 0;
  int64_t chunk = 0;
  bool exists = false;
  int lane = 0, row = 0;
  int count = 0;                  // elements of the chunk; 0 if there is no such line
  int64_t offset[Lines::kViews];  // to the first one
};

SIMT_FN ColumnUnit ColumnUnitOf(const Lines& lines, int64_t block) {
  ColumnUnit unit;
  // Blocks side by side take lines side by side: pages of memory are read whole.
  const int64_t tiles = (lines.count + simt::kWarp - 1) / simt::kWarp;
  unit.chunk = lines.chunks == 1 ? 0 : block / tiles;
  const int64_t tile = block - unit.chunk * tiles;
  unit.lane = threadIdx.x % simt::kWarp;
  unit.row = threadIdx.x / simt::kWarp;
  unit.line = static_cast<uint32_t>(tile * simt::kWarp + unit.lane);
  unit.exists = unit.line < lines.count;
  const int64_t begin = unit.chunk * lines.chunk;
  if (unit.exists) unit.count = static_cast<int>(min(lines.n - begin, lines.chunk));
  lines.Offsets(unit.exists ? unit.line : 0, unit.offset);
#pragma unroll
  for (int v = 0; v < Lines::kViews; ++v) unit.offset[v] += begin * lines.axis_stride[v];
  return unit;
}

// x[k] is element first + k step of the unit, `filler` where there is none.
template <int kCount>
SIMT_FN void LoadColumn(const Lines& lines, int view, const ColumnUnit& unit, int first, int step,
                        int end, float filler, float (&x)[kCount]) {
  const int64_t stride = lines.axis_stride[view], apart = step * stride;
  WithFloatType(lines.dtype[view], [&](auto type) {
    auto* from = static_cast<decltype(type)>(lines.data[view]) + unit.offset[view] + first * stride;
    // Additions: a product of 64 bits an element would take most of the instructions.
#pragma unroll
    for (int k = 0; k < kCount; ++k, from += apart) {
      x[k] = first + k * step < end ? ToFloat(*from) : filler;
    }
  });
}

template <int kCount>
SIMT_FN void StoreColumn(const Lines& lines, int view, const ColumnUnit& unit, int first, int step,
                         int end, const float (&x)[kCount]) {
  const int64_t stride = lines.axis_stride[view], apart = step * stride;
  WithFloatType(lines.dtype[view], [&](auto type) {
    auto* to = static_cast<decltype(type)>(lines.data[view]) + unit.offset[view] + first * stride;
#pragma unroll
    for (int k = 0; k < kCount; ++k, to += apart) {
      if (first + k * step < end) Store(to, x[k]);
    }
  });
}

// merge() of what the warps have for this thread's line, in their order: every thread gets it.
// `scratch`: [Lines::kThreads] of shared memory. Every thread of the block calls it.
template <class T, class Merge>
SIMT_FN T ReduceRows(const T& x, T* scratch, const Merge& merge) {
  scratch[threadIdx.x] = x;
  __syncthreads();
  const int lane = threadIdx.x % simt::kWarp;
  T all = scratch[lane];
  for (int row = 1; row < Lines::kRows; ++row) all = merge(all, scratch[row * simt::kWarp + lane]);
  __syncthreads();
  return all;
}

}  // namespace attnd::cuda
