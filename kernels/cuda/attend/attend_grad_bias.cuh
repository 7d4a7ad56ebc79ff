// The gradient of a bias of attend that repeats, or whose rows come in gather orders: a block for a
// tile of the gradient, or for a plane of it, that meets all pairs it sums over in a fixed order.
//
// Bound: FLOPs of tensor cores, 2 products of 64 x 64 x D a pair of tiles.
#pragma once

#include <cstdint>

#include "kernels/cuda/attend/attend_grad_pair.cuh"
#include "kernels/cuda/launch.h"

namespace attnd::cuda::attend_grad {

template <class T>
class GradBias {
 public:
  SIMT_FN GradBias(const GradData& problem, simt::SharedTiles& shared, int64_t q_tile,
                   int64_t k_tile)
      : p(problem), pair_(problem, shared), q_tile_(q_tile), k_tile_(k_tile) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums_[n][i] = 0;
    }
  }

  // All pairs of a head that the block sums over.
  SIMT_FN void Run(int64_t b, int64_t h) {
    const AttendHead head = AttendHead::Of(p.a, b, h);
    const bool all_queries = !p.bias_in_order || p.bias_q, all_keys = !p.bias_in_order || p.bias_k;
    const int64_t q_tiles = (head.queries + kSide - 1) / kSide;
    const int64_t k_tiles = (head.keys + kSide - 1) / kSide;
    const GradWants wants = {true, !p.bias_in_order, true, false};
    int64_t q = all_queries ? 0 : q_tile_;
    for (; q < (all_queries ? q_tiles : min(q_tiles, q_tile_ + 1)); ++q) {
      pair_.LoadOwn(b, h, q);
      pair_.StartWalk(q, all_keys ? k_tiles : min(k_tiles, k_tile_ + 1));
      while (true) {
        const GradStep step = pair_.Step();
        if (step.done) break;
        if (all_keys || step.other_tile == k_tile_) {
          Fragment weights, dscores;
          pair_.Weigh(step, wants, weights, dscores);
          if (p.bias_in_order) {
#pragma unroll
            for (int n = 0; n < 8; ++n) {
#pragma unroll
              for (int i = 0; i < 4; ++i) sums_[n][i] += dscores[n][i];
            }
          } else {
            AddTile(b, h);
          }
        } else {
          __syncthreads();
        }
        pair_.NextStep();
      }
    }
  }

  // Of rows in natural order.
  SIMT_FN void Store(int64_t b, int64_t h) const {
    __syncthreads();
    pair_.WriteScores(sums_);
    __syncthreads();
    float* scores = pair_.m.scores;
    const int t = threadIdx.x;
    if (p.bias_q && t < kSide) {
      for (int row = 1; row < kSide; ++row) scores[t] += scores[row * kScoreStride + t];
    }
    __syncthreads();
    if (p.bias_k && t < kSide) {
      for (int x = 1; x < kSide; ++x) scores[t * kScoreStride] += scores[t * kScoreStride + x];
    }
    __syncthreads();
    const int64_t rows = p.bias_q ? 1 : min(p.a.Nq - q_tile_ * kSide, int64_t{kSide});
    const int64_t columns = p.bias_k ? 1 : min(p.a.Nk - k_tile_ * kSide, int64_t{kSide});
    const Plane& to = p.bias_sums;
    for (int at = t; at < kSide * kSide; at += kGradThreads) {
      const int row = at / kSide, column = at % kSide;
      if (row >= rows || column >= columns) continue;
      StoreFloat(
          to.data, to.dtype,
          to.Head(b, h) + (q_tile_ * kSide + row) * to.row + (k_tile_ * kSide + column) * to.column,
          scores[row * kScoreStride + column]);
    }
  }

 private:
  // Several slots may be one key: a thread adds what belongs to one row of the gradient in the
  // order of slots.
  SIMT_FN void AddTile(int64_t b, int64_t h) const {
    __syncthreads();
    const Plane& to = p.bias_sums;
    float* plane = static_cast<float*>(to.data) + to.Head(p.bias_b ? 0 : b, p.bias_h ? 0 : h);
    float* scores = pair_.m.scores;
    const int t = threadIdx.x;
    if (p.bias_q) {
      if (t < kSide) {
        for (int row = 1; row < kSide; ++row) scores[t] += scores[row * kScoreStride + t];
      }
      __syncthreads();
    }
    if (t >= (p.bias_q ? 1 : kSide)) return;
    const int64_t row = p.bias_q ? 0 : pair_.m.own_rows[t];
    if (row < 0) return;
    for (int x = 0; x < kSide; ++x) {
      const int64_t key = pair_.m.other_rows[x];
      if (key < 0 || key >= p.a.Nk) continue;
      plane[row * to.row + (p.bias_k ? 0 : key * to.column)] += scores[t * kScoreStride + x];
    }
  }

  const GradData& p;
  GradPair<T, GradPass::kBias, /*kTerms=*/true> pair_;
  Fragment sums_;
  const int64_t q_tile_, k_tile_;
};

template <class T>
__global__ void __launch_bounds__(kGradThreads, kGradBlocks)
    GradBiasTiles(const __grid_constant__ Problems<GradData> problems) {
  const auto [p, block, index] = FindPlace(problems);
  const int64_t k_tiles = p.bias_in_order && !p.bias_k ? (p.a.Nk + kSide - 1) / kSide : 1;
  const int64_t q_tiles = p.bias_in_order && !p.bias_q ? (p.a.Nq + kSide - 1) / kSide : 1;
  const int64_t k_tile = block % k_tiles, q_tile = block / k_tiles % q_tiles;
  const int64_t plane = block / k_tiles / q_tiles;
  const int64_t heads = p.bias_h ? 1 : p.a.H, b = plane / heads, h = plane % heads;
  simt::SharedTiles shared;
  GradBias<T> bias(p, shared, q_tile, k_tile);
  for (int64_t of_b = b; of_b < (p.bias_b ? p.a.B : b + 1); ++of_b) {
    for (int64_t of_h = h; of_h < (p.bias_h ? p.a.H : h + 1); ++of_h) bias.Run(of_b, of_h);
  }
  if (p.bias_in_order) bias.Store(b, h);
}

}  // namespace attnd::cuda::attend_grad
