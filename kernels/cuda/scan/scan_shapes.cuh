// Shapes of walks of scan (scan_walk.cuh): what a warp holds, what a block does.
#pragma once

#include "kernels/cuda/scan/scan_work.h"
#include "kernels/cuda/simt.h"

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
constexpr int kWalkMostWarps = 8;
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
  int warps = 0;    // of columns N
  int columns = 0;  // of a block
  int slices = 0;   // blocks side by side
  int pitch = 0;    // of rows of N in tiles, with the columns of z
  int rows = 0;     // of a tile; 0: no tile fits
  int floats_a_row = 0;

  __host__ __device__ WalkPlan(const ScanWork& w, bool over_features) {
    K = over_features ? w.Dv : w.D;
    N = over_features ? w.D : w.Dv;
    shape = WalkShapeOf(K);
    if (shape < 0) return;
    const WalkSize size = SizeOfWalk(shape);
    const bool has_z = !over_features && w.has_z;
    const int needed = (N + size.n - 1) / size.n, most = kWalkMostWarps - (has_z ? 1 : 0);
    slices = (needed + most - 1) / most;
    warps = (needed + slices - 1) / slices;
    columns = warps * size.n;
    slices = (needed + warps - 1) / warps;
    pitch = columns + (has_z ? size.n : 0);
    const int group = static_cast<int>(w.H / w.Hkv);
    floats_a_row = (2 + group) * size.k + (2 + group) * pitch + 4 + group;
    if (w.feature_decays) floats_a_row += over_features ? pitch : size.k;
    const int usual = 16 << 10, limit = 38 << 10;  // floats; three blocks a processor, or one
    for (rows = 16; rows > 1 && rows * floats_a_row > usual;) rows /= 2;
    if (rows * floats_a_row > limit) rows = 0;
  }
};
// The tiles of a walk, whose padding SharedBytes adds; one has a row alone.
constexpr int kWalkTiles = 12;
inline size_t WalkSharedBytes(const WalkPlan& plan) {
  return static_cast<size_t>(plan.rows * plan.floats_a_row + plan.pitch) * sizeof(float) +
         kWalkTiles * simt::kSharedAlign;
}

// The widest head of chunks on tensor cores (scan_chunks.cuh), and the shared memory of a block of
// heads above 64: more than some devices have.
constexpr int kChunkMostWidth = 128;
constexpr int64_t kWideChunkBytes = 172 << 10;
// Whether S over columns goes by chunks: where decays differ from feature to feature the products
// of a chunk would have a factor for each pair of keys and feature; what a key writes by the delta
// rule depends on all keys before it.
__host__ __device__ inline bool GoesByChunks(const ScanWork& w) {
  const int most = w.has_wide_chunks ? kChunkMostWidth : 64;
  return !w.delta && !w.feature_decays && w.D <= most && w.Dv <= most;
}
// Whether their gradients do, too: those of decays and of beta are sums along walks; without
// normalisation the map exp lifts each row by factors of its own.
__host__ __device__ inline bool GradsGoByChunks(const ScanWork& w) {
  const bool lifts = w.map == FeatureMap::kExp && w.den == ScanDen::kOne;
  return GoesByChunks(w) && !lifts && !w.dlog_decay.given && !w.dbeta.given;
}
__host__ __device__ inline int ChunkWidth(const ScanWork& w) {
  return w.D <= 64 && w.Dv <= 64 ? 64 : kChunkMostWidth;
}
// The parts of a row's dot of the walk forward over columns.
__host__ __device__ inline int DotSlices(const ScanWork& w) {
  return GoesByChunks(w) ? ChunkWidth(w) / 64 : WalkPlan(w, false).slices;
}

}  // namespace attnd::cuda
