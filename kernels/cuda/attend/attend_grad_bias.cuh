// The gradient of a bias of attend that repeats, or whose rows come in gather orders. A block meets
// pairs in a fixed order: those of its items (BiasShares) in a tile of the gradient; in gather
// orders, where tiles of a head have rows of their own, in a tile of queries.
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
  // share: counted through all planes.
  SIMT_FN GradBias(const GradData& problem, simt::SharedTiles& shared, int q_tile, int k_tile,
                   int share, int64_t round)
      : p(problem),
        pair_(problem, shared),
        q_tile_(q_tile),
        k_tile_(k_tile),
        share_(share),
        round_(static_cast<int>(round)) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums_[n][i] = 0;
    }
  }

  // The pairs of item `n` of the block. False: there is none.
  SIMT_FN bool Run(int n) {
    const BiasPlace place = Here();
    if (place.first + n >= place.end) return false;
    const BiasItem item = p.BiasItemOf(place, place.first + n);
    const AttendHead head = AttendHead::Of(p.a, item.b, item.h);
    const Tiles q = TilesOf(head.queries, p.bias_q, q_tile_, item.q_part, p.bias_shares.q_parts);
    const Tiles k = TilesOf(head.keys, p.bias_k || !p.bias_in_order, k_tile_, item.k_part,
                            p.bias_shares.k_parts);
    if (k.first >= k.end) return true;
    const GradWants wants = {true, !p.bias_in_order, true, false};
    for (int tile = q.first; tile < q.end; ++tile) {
      pair_.UseHead(item.b, item.h);
      pair_.StartWalk(tile, k.first, k.end);
      // Of a window most tiles see none of these keys.
      if (pair_.Step().done) continue;
      pair_.LoadOwn(item.b, item.h, tile);
      while (true) {
        const GradStep step = pair_.Step();
        if (step.done) break;
        Fragment weights, dscores;
        pair_.Weigh(step, wants, weights, dscores);
        if (p.bias_in_order) {
#pragma unroll
          for (int n = 0; n < 8; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sums_[n][i] += dscores[n][i];
          }
        } else {
          AddTile();
        }
        pair_.NextStep();
      }
    }
    return true;
  }

  // Of rows in natural order; adds to what an earlier round has stored.
  SIMT_FN void Store() const {
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
    const int64_t rows = p.bias_q ? 1 : min(p.a.Nq - int64_t{q_tile_} * kSide, int64_t{kSide});
    const int64_t columns = p.bias_k ? 1 : min(p.a.Nk - int64_t{k_tile_} * kSide, int64_t{kSide});
    const Plane& to = p.bias_sums;
    const int64_t at = Here().at;
    for (int n = t; n < kSide * kSide; n += kGradThreads) {
      const int row = n / kSide, column = n % kSide;
      if (row >= rows || column >= columns) continue;
      const int64_t place = at + (int64_t{q_tile_} * kSide + row) * to.row +
                            (int64_t{k_tile_} * kSide + column) * to.column;
      float sum = scores[row * kScoreStride + column];
      if (round_ > 0) sum += LoadFloat(to.data, to.dtype, place);
      StoreFloat(to.data, to.dtype, place, sum);
    }
  }

 private:
  // Found again where it is used: registers hold sums.
  SIMT_FN BiasPlace Here() const { return p.BiasPlaceOf(share_, round_); }

  // In 32 bits, for the same reason.
  struct Tiles {
    int first, end;
  };
  // Of `slots`: a part of all tiles, or the one tile.
  SIMT_FN static Tiles TilesOf(int64_t slots, bool is_all, int tile, int64_t part, int64_t parts) {
    const int64_t tiles = (slots + kSide - 1) / kSide;
    if (!is_all) return {tile, tile < tiles ? tile + 1 : 0};
    return {static_cast<int>(tiles * part / parts), static_cast<int>(tiles * (part + 1) / parts)};
  }

  // Several slots may be one key: a thread adds what belongs to one row of the gradient in the
  // order of slots.
  SIMT_FN void AddTile() const {
    __syncthreads();
    const Plane& to = p.bias_sums;
    float* plane = static_cast<float*>(to.data) + Here().at;
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
  const int q_tile_, k_tile_;
  const int share_, round_;
};

template <class T>
__global__ void __launch_bounds__(kGradThreads, kGradBlocks)
    GradBiasTiles(const __grid_constant__ Problems<GradData> problems, const int64_t round) {
  const auto [p, block, index] = FindPlace(problems);
  const int64_t k_tiles = p.bias_in_order && !p.bias_k ? (p.a.Nk + kSide - 1) / kSide : 1;
  const int64_t in_order = (p.a.Nq + kSide - 1) / kSide;
  const int64_t q_tiles = p.bias_q ? 1 : p.bias_in_order ? in_order : p.query_tiles;
  const int k_tile = static_cast<int>(block % k_tiles);
  const int q_tile = static_cast<int>(block / k_tiles % q_tiles);
  const int share = static_cast<int>(block / k_tiles / q_tiles);
  const BiasPlace place = p.BiasPlaceOf(share, round);
  // The first round stores zeros of shares without items.
  if (place.first >= place.end && round > 0) return;
  simt::SharedTiles shared;
  GradBias<T> bias(p, shared, q_tile, k_tile, share, round);
  for (int n = 0; bias.Run(n); ++n) continue;
  if (p.bias_in_order) bias.Store();
}

}  // namespace attnd::cuda::attend_grad
