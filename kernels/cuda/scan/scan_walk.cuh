// What the walks of scan share: a state in registers of a warp, its shape, tiles of positions.
//
// A walk carries a matrix M [K,N] through positions, one after the other: rows are written to it
// (an outer product x (x) y, x [K], y [N]) and read from it (sums over K). Over columns M = S, K
// are features and N columns of v; over features M = S^T, K are the columns of v. Columns N need
// nothing of each other, so that blocks and warps share them out.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/scan/scan_shapes.cuh"
#include "kernels/cuda/scan/scan_state.cuh"
#include "kernels/cuda/scan/scan_tiles.cuh"
#include "kernels/cuda/scan/scan_work.h"

namespace attnd::cuda {

// Where a block of a walk is.
struct WalkPlace {
  int64_t b, g, segment;  // of the line
  int slice;
};
SIMT_FN int64_t LineOf(const ScanWork& w, int64_t segment) {
  int64_t low = 0, high = w.B - 1;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (w.lines[middle].first_segment <= segment) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}
// Blocks are numbered [segment or sequence][kv head][slice].
SIMT_FN WalkPlace FindWalk(const ScanWork& w, int64_t block, int slices, bool whole_lines) {
  WalkPlace at;
  at.slice = static_cast<int>(block % slices);
  const int64_t unit = block / slices / w.Hkv;
  at.g = block / slices % w.Hkv;
  at.b = whole_lines ? unit : LineOf(w, unit);
  at.segment = whole_lines ? 0 : unit - w.lines[at.b].first_segment;
  return at;
}

// The key and query of a position; -1: there is none that counts.
SIMT_FN int64_t KeyAt(const ScanLine& line, int64_t p) {
  const int64_t t = p - line.lead;
  return t >= 0 && t < line.used_keys ? t : -1;
}
SIMT_FN int64_t QueryAt(const ScanLine& line, int64_t p) {
  const int64_t i = p - line.ahead;
  return i >= line.first_query && i < line.end_query ? i : -1;
}

// A block of a walk: its tiles' shape, and what the thread's warp does.
template <class S, bool kFeatures>
struct WalkBlock {
  const ScanWork& w;
  const WalkPlan plan;
  const WalkPlace at;
  const ScanLine line;
  const int group, first, count;  // columns of the block
  const int warp, lane;
  const bool is_z, walks;

  SIMT_FN WalkBlock(const ScanWork& work, int64_t block, bool whole_lines)
      : w(work),
        plan(work, kFeatures),
        at(FindWalk(work, block, plan.slices, whole_lines)),
        line(work.lines[at.b]),
        group(work.group()),
        first(at.slice * plan.columns),
        count(min(plan.columns, plan.N - first)),
        warp(static_cast<int>(threadIdx.x) / simt::kWarp),
        lane(static_cast<int>(threadIdx.x) % simt::kWarp),
        is_z(!kFeatures && work.has_z && warp == plan.warps),
        walks(warp < plan.warps || is_z) {}

  // The column of the tiles where the thread's begin.
  SIMT_FN int Local(const WalkState<S>& state) const {
    return walks ? warp * S::kN + state.first : 0;
  }
  SIMT_FN WalkElements<S, kFeatures> Elements(const WalkState<S>& state) const {
    const int local = Local(state);
    const int own = is_z ? (state.first == 0 ? 1 : 0) : count - local;
    const int kept = walks ? own : 0;
    return {w, first + local, kept, is_z, is_z && at.slice != 0 ? 0 : kept};
  }
  // In w.states or w.adjoints.
  SIMT_FN StateRef StateAt(float* states, int64_t segment) const {
    return StateRef(w, FloatsAt(states, segment));
  }
  // Of launches in turn.
  SIMT_FN float* CarryAt(bool is_odd) const {
    return w.carries + (((is_odd ? w.B : 0) + at.b) * w.Hkv + at.g) * w.state_floats();
  }
  SIMT_FN float* FloatsAt(float* states, int64_t segment) const {
    return states + (w.StateSlot(at.b, line, segment) * w.Hkv + at.g) * w.state_floats();
  }
  // Calls f(row of the tile, position) for warps in turn.
  template <class F>
  SIMT_FN void ForEachRow(int rows, const F& f) const {
    const int warps = static_cast<int>(blockDim.x) / simt::kWarp;
    for (int row = warp; row < rows; row += warps) f(row);
  }
};

}  // namespace attnd::cuda
