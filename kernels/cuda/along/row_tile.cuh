// A dense axis: threads side by side hold elements side by side, four at a time. What a team of
// them computes does not depend on the other lines of its block.
#pragma once

#include "kernels/cuda/along/lines.h"
#include "kernels/cuda/fours.h"
#include "kernels/cuda/simt.h"

namespace attnd::cuda {

constexpr float kLeast = -INFINITY;
constexpr int kHeldFours = Lines::kHeld / 4;
constexpr int HeldFours(LineKind kind) {
  return kind == LineKind::kShortRows ? Lines::kShortHeld / 4 : kHeldFours;
}

// A line, or a chunk of one, and this thread's place in the team that works on it.
struct RowUnit {
  uint32_t line = 0;
  int64_t chunk = 0;
  bool exists = false;  // else the thread only keeps the others of its warp company
  int rank = 0, team = 1;
  int count = 0;                  // elements
  int64_t offset[Lines::kViews];  // to the first one

  // The first of four elements, of those that a thread holds.
  SIMT_FN int First(int four) const { return (four * team + rank) * 4; }
  // Whether the team holds any of these fours: the same in all its threads.
  SIMT_FN bool Has(int four) const { return four * team * 4 < count; }
};

SIMT_FN RowUnit RowUnitOf(const Lines& lines, int64_t block) {
  RowUnit unit;
  unit.team = lines.team;
  if (lines.team == Lines::kThreads) {
    const int64_t line = lines.chunks == 1 ? block : block / lines.chunks;
    unit.chunk = block - line * lines.chunks;
    unit.line = static_cast<uint32_t>(line);
    unit.rank = threadIdx.x;
  } else {
    const int lines_a_block = Lines::kThreads / lines.team;
    unit.line = static_cast<uint32_t>(block * lines_a_block + threadIdx.x / lines.team);
    unit.rank = threadIdx.x % lines.team;
  }
  unit.exists = unit.line < lines.count;
  const int64_t begin = unit.chunk * lines.chunk;
  if (unit.exists) unit.count = static_cast<int>(min(lines.n - begin, lines.chunk));
  lines.Offsets(unit.exists ? unit.line : 0, unit.offset);
#pragma unroll
  for (int v = 0; v < Lines::kViews; ++v) unit.offset[v] += begin * lines.axis_stride[v];
  return unit;
}

// What a thread holds of a unit.
template <int kFours>
using Held = float[kFours][4];

// Calls f(four, j, i) with each place of a held element, and its number i in the unit. May visit
// places of elements that do not exist.
template <int kFours, class F>
SIMT_FN void ForEachHeld(const RowUnit& unit, const F& f) {
#pragma unroll
  for (int g = 0; g < kFours; ++g) {
    if (!unit.Has(g)) break;
#pragma unroll
    for (int j = 0; j < 4; ++j) f(g, j, unit.First(g) + j);
  }
}

// Elements that do not exist are `filler`; fours that no thread has are undefined.
template <int kFours>
SIMT_FN void LoadRow(const Lines& lines, int view, const RowUnit& unit, float filler,
                     float (&x)[kFours][4]) {
  const int64_t stride = lines.axis_stride[view];
  const bool vectors = lines.vectors[view];
  WithFloatType(lines.dtype[view], [&](auto type) {
    auto* data = static_cast<decltype(type)>(lines.data[view]) + unit.offset[view];
#pragma unroll
    for (int g = 0; g < kFours; ++g) {
      if (!unit.Has(g)) break;
      const int first = unit.First(g);
      if (vectors && first + 4 <= unit.count) {
        LoadFour(data + first, x[g]);
        continue;
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        x[g][j] = first + j < unit.count ? ToFloat(data[(first + j) * stride]) : filler;
      }
    }
  });
}

template <int kFours>
SIMT_FN void StoreRow(const Lines& lines, int view, const RowUnit& unit,
                      const float (&x)[kFours][4]) {
  const int64_t stride = lines.axis_stride[view];
  const bool vectors = lines.vectors[view];
  WithFloatType(lines.dtype[view], [&](auto type) {
    auto* data = static_cast<decltype(type)>(lines.data[view]) + unit.offset[view];
#pragma unroll
    for (int g = 0; g < kFours; ++g) {
      if (!unit.Has(g)) break;
      const int first = unit.First(g);
      if (vectors && first + 4 <= unit.count) {
        StoreFour(data + first, x[g]);
        continue;
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (first + j < unit.count) Store(data + (first + j) * stride, x[g][j]);
      }
    }
  });
}

SIMT_FN float Shuffled(float x, int flip) { return __shfl_xor_sync(simt::kAllLanes, x, flip); }
SIMT_FN double Shuffled(double x, int flip) { return __shfl_xor_sync(simt::kAllLanes, x, flip); }

// merge() of all threads of a team, in a fixed order; thread 0 of the team gets it, and where
// merge(a, b) = merge(b, a) all do. `scratch`: [Lines::kRows] of shared memory. Every thread of the
// block calls it.
template <class T, class Merge>
SIMT_FN T ReduceTeam(T x, int team, T* scratch, const Merge& merge) {
  for (int flip = min(team, simt::kWarp) / 2; flip > 0; flip /= 2) {
    x = merge(x, Shuffled(x, flip));
  }
  if (team <= simt::kWarp) return x;
  if (threadIdx.x % simt::kWarp == 0) scratch[threadIdx.x / simt::kWarp] = x;
  __syncthreads();
  const int warps = team / simt::kWarp, first = threadIdx.x / team * warps;
  x = scratch[first];
  for (int w = 1; w < warps; ++w) x = merge(x, scratch[first + w]);
  __syncthreads();
  return x;
}

}  // namespace attnd::cuda
