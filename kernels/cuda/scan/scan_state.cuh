// The state of a walk of scan in registers, and where it comes from and goes to.
#pragma once

#include "kernels/cuda/scan/scan_shapes.cuh"

namespace attnd::cuda {

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

// A state in memory, float32: S [D,Dv] and z [D] of any strides; null: zeros, or not stored.
struct StateRef {
  float *s = nullptr, *z = nullptr;
  int64_t s_feature = 0, s_column = 0, z_feature = 0;

  SIMT_FN StateRef() {}
  // In scratch.
  SIMT_FN StateRef(const ScanWork& w, float* at)
      : s(at),
        z(w.has_z ? at + w.Dv : nullptr),
        s_feature(w.Dv + 1),
        s_column(1),
        z_feature(w.Dv + 1) {}
  // Tensors [B,Hkv,D,Dv] and [B,Hkv,D].
  SIMT_FN StateRef(const ScanView& S, const ScanView& Z, int64_t b, int64_t g)
      : s(S.given ? static_cast<float*>(S.data) + b * S.b + g * S.h : nullptr),
        z(Z.given ? static_cast<float*>(Z.data) + b * Z.b + g * Z.h : nullptr),
        s_feature(S.n),
        s_column(S.d),
        z_feature(Z.n) {}
};

// Which elements of states a thread's part of M is.
template <class S, bool kFeatures>
struct WalkElements {
  const ScanWork& w;
  int first;  // its first column of v, or feature
  int count;  // how many of them there are
  bool is_z;
  int stored;  // of them: blocks of all slices keep z, and the first stores it

  // f(element of m, its place) of the first `columns`.
  template <class F>
  SIMT_FN void ForEach(WalkState<S>& state, const StateRef& at, int columns, const F& f) const {
    float* const base = is_z ? at.z : at.s;
    if (base == nullptr) return;
    const int64_t by_feature = is_z ? at.z_feature : at.s_feature;
    const int64_t by_column = is_z ? 0 : at.s_column;
    const int64_t by_row = kFeatures ? by_column : by_feature;
    const int64_t by_own = kFeatures ? by_feature : by_column;
    float* const own = base + (is_z ? 0 : first) * by_own;
    const int rows = kFeatures ? w.Dv : w.D;
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) {
      const int row = state.Row(r);
      if (row >= rows) continue;
#pragma unroll
      for (int c = 0; c < S::kColumns; ++c) {
        if (c < columns) f(state.m[r][c], own + row * by_row + c * by_own);
      }
    }
  }
  SIMT_FN void Load(WalkState<S>& state, const StateRef& from) const {
    ForEach(state, from, count, [](float& m, const float* at) { m = *at; });
  }
  SIMT_FN void Store(WalkState<S>& state, const StateRef& to) const {
    ForEach(state, to, stored, [](float& m, float* at) { *at = m; });
  }
  // z of features, which every lane keeps for its own.
  SIMT_FN float OneOfZ(int c, const StateRef& from) const {
    return c < count && w.has_z && from.z != nullptr ? from.z[(first + c) * from.z_feature] : 0;
  }
};

}  // namespace attnd::cuda
