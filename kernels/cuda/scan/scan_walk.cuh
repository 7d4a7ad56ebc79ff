// What the walks of scan share: a state in registers of a warp, its shape, tiles of positions.
//
// A walk carries a matrix M [K,N] through positions, one after the other: rows are written to it
// (an outer product x (x) y, x [K], y [N]) and read from it (sums over K). Over columns M = S, K
// are features and N columns of v; over features M = S^T, K are the columns of v. Columns N need
// nothing of each other, so that blocks and warps share them out.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/scan/scan_den.cuh"
#include "kernels/cuda/scan/scan_maps.cuh"
#include "kernels/cuda/scan/scan_work.h"

namespace attnd::cuda {

// A warp holds M [K, kN]: kAcross lanes share the rows, the others have columns of their own; a
// thread has kRows x kColumns elements. Rows of a thread come in quads: number j * kAcross + lane.
template <int kAcross_, int kRows_, int kColumns_>
struct WalkShape {
  static constexpr int kAcross = kAcross_, kRows = kRows_, kColumns = kColumns_;
  static constexpr int kK = kAcross * kRows;
  static constexpr int kN = simt::kWarp / kAcross * kColumns;
};

constexpr int kWalkShapes = 7;
constexpr int kWalkMostWarps = 9;  // eight of columns, one of z
struct WalkSize {
  int k, n;
};
// As WithWalkShape counts them.
__host__ __device__ constexpr WalkSize SizeOfWalk(int shape) {
  return shape <= 4 ? WalkSize{32 << shape, 64 >> shape}
                    : WalkSize{1024 << (shape - 5), 2 >> (shape - 5)};
}
// The shape for K rows; -1: there is none.
__host__ __device__ constexpr int WalkShapeOf(int K) {
  for (int shape = 0; shape < kWalkShapes; ++shape) {
    if (K <= SizeOfWalk(shape).k) return shape;
  }
  return -1;
}
template <class F>
auto WithWalkShape(int shape, const F& f) {
  switch (shape) {
    case 0:
      return f(WalkShape<2, 16, 4>());
    case 1:
      return f(WalkShape<4, 16, 4>());
    case 2:
      return f(WalkShape<8, 16, 4>());
    case 3:
      return f(WalkShape<16, 16, 4>());
    case 4:
      return f(WalkShape<32, 16, 4>());
    case 5:
      return f(WalkShape<32, 32, 2>());
    default:
      return f(WalkShape<32, 64, 1>());
  }
}

// How a problem is walked over columns or over features.
struct WalkPlan {
  int shape = 0, K = 0, N = 0;
  int warps = 0;       // of columns N
  int columns = 0;     // of a block
  int slices = 0;      // blocks side by side
  int pitch = 0;       // of rows of N in tiles, with the columns of z
  int rows = 0;        // of a tile; 0: no tile fits
  int floats_a_row = 0;

  __host__ __device__ WalkPlan() = default;
  __host__ __device__ WalkPlan(const ScanWork& w, bool over_features) {
    K = over_features ? w.Dv : w.D;
    N = over_features ? w.D : w.Dv;
    shape = WalkShapeOf(K);
    if (shape < 0) return;
    const WalkSize size = SizeOfWalk(shape);
    const bool has_z = !over_features && w.has_z;
    warps = (N + size.n - 1) / size.n;
    if (warps > kWalkMostWarps - 1) warps = kWalkMostWarps - 1;
    columns = warps * size.n;
    slices = (N + columns - 1) / columns;
    pitch = columns + (has_z ? size.n : 0);
    const int group = static_cast<int>(w.H / w.Hkv);
    floats_a_row = (2 + group) * size.k + (2 + group) * pitch + 4 + group;
    if (w.feature_decays) floats_a_row += over_features ? pitch : size.k;
    const int usual = 16 << 10, most = 38 << 10;  // floats; three blocks a processor, or one
    for (rows = 16; rows > 1 && rows * floats_a_row > usual;) rows /= 2;
    if (rows * floats_a_row > most) rows = 0;
  }
};
// The tiles of a walk, whose padding SharedBytes adds; one has a row alone.
constexpr int kWalkTiles = 12;
inline size_t WalkSharedBytes(const WalkPlan& plan) {
  return static_cast<size_t>(plan.rows * plan.floats_a_row + plan.pitch) * sizeof(float) +
         kWalkTiles * simt::kSharedAlign;
}

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

SIMT_FN float LoadAt(const ScanView& v, int64_t at) { return LoadFloat(v.data, v.dtype, at); }

// The key and query of a position; -1: there is none that counts.
SIMT_FN int64_t KeyAt(const ScanLine& line, int64_t p) {
  const int64_t t = p - line.lead;
  return t >= 0 && t < line.used_keys ? t : -1;
}
SIMT_FN int64_t QueryAt(const ScanLine& line, int64_t p) {
  const int64_t i = p - line.ahead;
  return i >= line.first_query && i < line.end_query ? i : -1;
}

// tile[row][c] = value(c) for rows [0, rows) and c < width; a warp a row, so that neighbours read
// neighbours. `start(row)` gives the value of a row. Returns whether all values are finite.
template <class Start>
SIMT_FN bool FillTile(float* tile, int rows, int width, int pitch, const Start& start) {
  bool finite = true;
  const int warps = static_cast<int>(blockDim.x) / simt::kWarp;
  for (int row = static_cast<int>(threadIdx.x) / simt::kWarp; row < rows; row += warps) {
    const auto value = start(row);
    for (int c = static_cast<int>(threadIdx.x) % simt::kWarp; c < width; c += simt::kWarp) {
      const float x = value(c);
      finite = finite && fabsf(x) < INFINITY;
      tile[row * pitch + c] = x;
    }
  }
  return finite;
}

// Columns [first, first + count) of row n of a view, zeros beyond; `n` < 0: zeros.
struct RowOfView {
  const ScanView& view;
  int64_t at;
  int count;
  float factor;

  SIMT_FN float operator()(int c) const {
    return c < count ? factor * LoadAt(view, at + c * view.d) : 0.0f;
  }
};
SIMT_FN RowOfView ValuesOf(const ScanView& view, int64_t b, int64_t h, int64_t n, int first,
                           int count, float factor = 1) {
  return {view, b * view.b + h * view.h + n * view.n + first * view.d,
          n < 0 || !view.given ? 0 : count, factor};
}
// The same of features.
struct RowOfFeatures {
  RowOfView raw;
  FeatureMap map;
  float shift, offset;

  SIMT_FN float operator()(int c) const {
    return c < raw.count ? Feature(map, LoadAt(raw.view, raw.at + c * raw.view.d), shift, offset)
                         : 0.0f;
  }
};
SIMT_FN RowOfFeatures FeaturesOf(const ScanWork& w, const ScanView& view, const float* shift,
                                 int64_t b, int64_t h, int64_t n, int64_t number, int first,
                                 int count) {
  return {ValuesOf(view, b, h, n, first, count), w.map,
          n < 0 || shift == nullptr ? 0 : shift[number], w.offset};
}
SIMT_FN RowOfFeatures KeyFeatures(const ScanWork& w, int64_t b, int64_t g, int64_t t, int first,
                                  int count) {
  return FeaturesOf(w, w.k, w.k_shift, b, g, t, w.Key(b, g, t), first, count);
}
SIMT_FN RowOfFeatures QueryFeatures(const ScanWork& w, int64_t b, int64_t h, int64_t i, int first,
                                    int count) {
  return FeaturesOf(w, w.q, w.q_shift, b, h, i, w.Row(b, h, i), first, count);
}
// Columns of a dense float32 row; null: zeros.
struct RowOfFloats {
  const float* row;
  int count;
  SIMT_FN float operator()(int c) const { return row != nullptr && c < count ? row[c] : 0.0f; }
};

// e^(a - b), a <= b being maxima of what was seen.
SIMT_FN float ShiftFactor(float a, float b) {
  if (a == -INFINITY) return 0;
  return a == b ? 1 : expf(a - b);
}
// What all features of key t decay by.
SIMT_FN float KeyDecay(const ScanWork& w, int64_t b, int64_t g, int64_t t) {
  if (t < 0 || !w.key_decays) return 1;
  if (w.k_shift != nullptr) {
    const float* shift = w.k_shift + w.Key(b, g, t);
    return ShiftFactor(t == 0 ? -INFINITY : shift[-1], shift[0]);
  }
  return expf(LoadAt(w.log_decay, b * w.log_decay.b + g * w.log_decay.h + t * w.log_decay.n));
}
struct RowOfDecays {
  RowOfView logs;
  SIMT_FN float operator()(int c) const { return c < logs.count ? expf(logs(c)) : 1.0f; }
};
SIMT_FN RowOfDecays DecaysOf(const ScanWork& w, int64_t b, int64_t g, int64_t t, int first,
                             int count) {
  return {ValuesOf(w.log_decay, b, g, t, first, count)};
}
SIMT_FN float BetaOf(const ScanWork& w, int64_t b, int64_t g, int64_t t) {
  if (t < 0 || !w.beta.given) return 1;
  return LoadAt(w.beta, b * w.beta.b + g * w.beta.h + t * w.beta.n);
}

// The part of M of a thread.
template <class S>
struct WalkState {
  float m[S::kRows][S::kColumns];
  int across, first;  // its lane among those that share rows; its first column in the warp

  SIMT_FN WalkState() {
    const int lane = static_cast<int>(threadIdx.x) % simt::kWarp;
    across = lane % S::kAcross;
    first = lane / S::kAcross * S::kColumns;
    Clear();
  }
  SIMT_FN void Clear() {
    for (int r = 0; r < S::kRows; ++r) {
      for (int c = 0; c < S::kColumns; ++c) m[r][c] = 0;
    }
  }
  // The row number of m[r].
  SIMT_FN int Row(int r) const { return (r / 4 * S::kAcross + across) * 4 + r % 4; }

  // f(quad, x): the quad of rows 4 quad .. 4 quad + 3 and their elements of a row of kK floats.
  template <class F>
  SIMT_FN void ForEachQuad(const float* row, const F& f) const {
#pragma unroll
    for (int j = 0; j < S::kRows / 4; ++j) {
      const float4 x = reinterpret_cast<const float4*>(row)[j * S::kAcross + across];
      f(j * 4, x.x);
      f(j * 4 + 1, x.y);
      f(j * 4 + 2, x.z);
      f(j * 4 + 3, x.w);
    }
  }

  SIMT_FN void Scale(float a) {
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) {
#pragma unroll
      for (int c = 0; c < S::kColumns; ++c) m[r][c] *= a;
    }
  }
  SIMT_FN void ScaleRows(const float* a) {
    ForEachQuad(a, [&](int r, float factor) {
#pragma unroll
      for (int c = 0; c < S::kColumns; ++c) m[r][c] *= factor;
    });
  }
  SIMT_FN void ScaleColumns(const float* a) {
#pragma unroll
    for (int c = 0; c < S::kColumns; ++c) {
      const float factor = a[c];
#pragma unroll
      for (int r = 0; r < S::kRows; ++r) m[r][c] *= factor;
    }
  }
  // M += x (x) y, x a row of kK floats.
  SIMT_FN void Write(const float* x, const float (&y)[S::kColumns]) {
    ForEachQuad(x, [&](int r, float factor) {
#pragma unroll
      for (int c = 0; c < S::kColumns; ++c) m[r][c] += factor * y[c];
    });
  }
  // Rows from `K` on become zero again: 0 times what is not finite was written to them.
  SIMT_FN void ClearBeyond(int K) {
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) {
      if (Row(r) < K) continue;
#pragma unroll
      for (int c = 0; c < S::kColumns; ++c) m[r][c] = 0;
    }
  }
  // sums[c] = x . M[:,c], in all lanes.
  SIMT_FN void Read(const float* x, float (&sums)[S::kColumns]) const {
#pragma unroll
    for (int c = 0; c < S::kColumns; ++c) sums[c] = 0;
    ForEachQuad(x, [&](int r, float factor) {
#pragma unroll
      for (int c = 0; c < S::kColumns; ++c) sums[c] += factor * m[r][c];
    });
#pragma unroll
    for (int flip = 1; flip < S::kAcross; flip *= 2) {
#pragma unroll
      for (int c = 0; c < S::kColumns; ++c) {
        sums[c] += __shfl_xor_sync(simt::kAllLanes, sums[c], flip);
      }
    }
  }
  // to[c] = values[c], once.
  SIMT_FN void Put(const float (&values)[S::kColumns], float* to) const {
    if (across != 0) return;
#pragma unroll
    for (int c = 0; c < S::kColumns; ++c) to[c] = values[c];
  }
  SIMT_FN void Get(const float* from, float (&values)[S::kColumns]) const {
#pragma unroll
    for (int c = 0; c < S::kColumns; ++c) values[c] = from[c];
  }
};

// Which elements of states a thread's part of M is.
template <class S, bool kFeatures>
struct WalkElements {
  const ScanWork& w;
  int first;  // its first column of v, or feature
  int count;  // how many of them there are
  bool is_z;

  // f(element of m, feature, column of v; Dv: z).
  template <class F>
  SIMT_FN void ForEach(WalkState<S>& state, const F& f) const {
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) {
      const int row = state.Row(r);
      if (row >= (kFeatures ? w.Dv : w.D)) continue;
#pragma unroll
      for (int c = 0; c < S::kColumns; ++c) {
        if (c >= count) continue;
        const int column = is_z ? w.Dv : first + c;
        f(state.m[r][c], kFeatures ? column : row, kFeatures ? row : column);
      }
    }
  }
  // From and to states of scratch.
  SIMT_FN void Load(WalkState<S>& state, const float* from) const {
    ForEach(state, [&](float& m, int k, int n) { m = from[int64_t{k} * (w.Dv + 1) + n]; });
  }
  SIMT_FN void Store(WalkState<S>& state, float* to) const {
    ForEach(state, [&](float& m, int k, int n) { to[int64_t{k} * (w.Dv + 1) + n] = m; });
  }
  // From and to tensors S [B,Hkv,D,Dv] and z [B,Hkv,D]; zeros where they are not given.
  SIMT_FN void Load(WalkState<S>& state, const ScanView& s, const ScanView& z, int64_t b,
                    int64_t g) const {
    ForEach(state, [&](float& m, int k, int n) {
      if (n == w.Dv) {
        m = z.given ? LoadAt(z, b * z.b + g * z.h + k * z.n) : 0;
      } else {
        m = s.given ? LoadAt(s, b * s.b + g * s.h + k * s.n + n * s.d) : 0;
      }
    });
  }
  SIMT_FN void Store(WalkState<S>& state, const ScanView& s, const ScanView& z, int64_t b,
                     int64_t g) const {
    ForEach(state, [&](float& m, int k, int n) {
      if (n == w.Dv) {
        if (z.given) StoreFloat(z.data, z.dtype, b * z.b + g * z.h + k * z.n, m);
      } else if (s.given) {
        StoreFloat(s.data, s.dtype, b * s.b + g * s.h + k * s.n + n * s.d, m);
      }
    });
  }
  // z of features, which every lane keeps for its own.
  SIMT_FN float OneOfZ(int c, const float* from, const ScanView& z, int64_t b, int64_t g) const {
    if (c >= count || !w.has_z) return 0;
    if (from != nullptr) return from[int64_t{first + c} * (w.Dv + 1) + w.Dv];
    return z.given ? LoadAt(z, b * z.b + g * z.h + (first + c) * z.n) : 0;
  }
};

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
    return {w, first + local, walks ? own : 0, is_z};
  }
  SIMT_FN float* StateAt(float* states, int64_t segment) const {
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
