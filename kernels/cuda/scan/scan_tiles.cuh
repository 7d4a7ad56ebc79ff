// Tiles of scan: rows of features, values and decays as a block copies them to shared memory.
#pragma once

#include "kernels/cuda/scan/scan_den.cuh"
#include "kernels/cuda/scan/scan_maps.cuh"
#include "kernels/cuda/scan/scan_work.h"

namespace attnd::cuda {

SIMT_FN float LoadAt(const ScanView& v, int64_t at) { return LoadFloat(v.data, v.dtype, at); }

// tile[row][c] = value(c) for rows [0, rows) and c < width; a warp a row, so that neighbours read
// neighbours. `start(row)` gives the value of a row. Returns whether all values are finite.
template <class Start>
SIMT_FN bool FillTile(float* tile, int rows, int width, int pitch, const Start& start) {
  bool finite = true;
  const int warps = static_cast<int>(blockDim.x) / simt::kWarp;
#pragma unroll 1
  for (int row = static_cast<int>(threadIdx.x) / simt::kWarp; row < rows; row += warps) {
    const auto value = start(row);
#pragma unroll 1
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

}  // namespace attnd::cuda
