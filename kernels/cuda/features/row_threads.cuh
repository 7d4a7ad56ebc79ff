// Threads that work on one row together: a warp on short rows, a block on long ones.
#pragma once

#include <cmath>

#include "kernels/cuda/simt.h"

namespace attnd::cuda {

constexpr int kRowBlock = 256;  // threads of a block

// How many elements a row has before a block works on it.
constexpr int64_t kLongRow = 2048;

// kThreads: simt::kWarp or kRowBlock. Every thread of the row gets a result, which depends on
// kThreads alone.
template <int kThreads>
class RowThreads {
 public:
  static_assert(kThreads == simt::kWarp || kThreads == kRowBlock);
  static constexpr int kRows = kRowBlock / kThreads;  // of a block

  SIMT_FN RowThreads() {
    if constexpr (kThreads > simt::kWarp) {
      simt::SharedTiles shared;
      of_warps_ = shared.Take<double>(kRowBlock / simt::kWarp);
    }
  }

  SIMT_FN int thread() const { return static_cast<int>(threadIdx.x) % kThreads; }
  SIMT_FN int row() const { return static_cast<int>(threadIdx.x) / kThreads; }

  SIMT_FN double Sum(double x) const {
    return Combine(x, [](double a, double b) { return a + b; });
  }
  // NaN if one is.
  SIMT_FN float Largest(float x) const {
    return static_cast<float>(Combine(x, [](double a, double b) { return LargerOf(a, b); }));
  }
  SIMT_FN static double LargerOf(double a, double b) { return a != a || a >= b ? a : b; }

 private:
  template <class F>
  SIMT_FN double Combine(double x, const F& f) const {
    for (int flip = simt::kWarp / 2; flip > 0; flip /= 2) {
      x = f(x, __shfl_xor_sync(simt::kAllLanes, x, flip));
    }
    if constexpr (kThreads > simt::kWarp) {
      __syncthreads();  // all have read what came before
      if (threadIdx.x % simt::kWarp == 0) of_warps_[threadIdx.x / simt::kWarp] = x;
      __syncthreads();
      x = of_warps_[0];
      for (int i = 1; i < kRowBlock / simt::kWarp; ++i) x = f(x, of_warps_[i]);
    }
    return x;
  }

  double* of_warps_ = nullptr;
};

constexpr size_t kRowSharedBytes = simt::SharedBytes<double>(kRowBlock / simt::kWarp);

}  // namespace attnd::cuda
