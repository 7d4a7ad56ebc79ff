// The gradient of attend over tiles, in two passes that each recompute P and dS from lse: by tiles
// of queries (dq, dq_rel, dtable and sums of rows), by tiles of keys (dk, dv; the query heads of a
// kv head one after the other). Nothing is added by two blocks: the same bits in any order.
//
// Bound: FLOPs of tensor cores, 7 products of 64 x 64 x D a pair of tiles where 5 are due, 8 for
// D = 128, where dk and dv are of two blocks. The relative term takes 2 such products more in
// each pass, and its gradients are added pair by pair, 2 D multiply-adds each.
#pragma once

#include <cstdint>

#include "kernels/cuda/attend/attend_grad_sums.cuh"
#include "kernels/cuda/launch.h"

namespace attnd::cuda::attend_grad {

// A block has part of the columns of a tile of queries, or of every query_shares-th one.
template <class T, int kUnits, bool kTerms>
__global__ void __launch_bounds__(kGradThreads, kGradBlocks)
    GradQueries(const __grid_constant__ Problems<GradData> problems, const int64_t round) {
  const auto [p, block, index] = FindPlace(problems);
  if (round >= p.query_rounds) return;
  const int64_t part = block % p.query_parts, rest = block / p.query_parts;
  const int64_t tiles = p.query_shares > 0 ? p.query_shares : p.query_tiles;
  // The last tiles first: under a causal mask they are the longest.
  const int64_t first = tiles - 1 - rest % tiles, h = rest / tiles % p.a.H;
  const int64_t b = rest / tiles / p.a.H;
  const bool is_wide = p.careful_queries != nullptr;
  const int64_t at = (rest / tiles * tiles + first) * p.query_rounds + round;
  if (is_wide && (p.careful_queries[at] & GradData::kCareful) == 0) return;
  simt::SharedTiles shared;
  GradSums<T, GradPass::kQueries, kUnits, kTerms> sums(p, shared, static_cast<int>(part), round);
  sums.RunTiles(b, h, 1, first, tiles, static_cast<int>(first), is_wide);
}

template <class T, int kUnits, bool kTerms>
__global__ void __launch_bounds__(kGradThreads, kGradBlocks)
    GradKeys(const __grid_constant__ Problems<GradData> problems, const int64_t round) {
  const auto [p, block, index] = FindPlace(problems);
  if (round >= p.key_rounds) return;
  const int64_t part = block % p.key_parts, rest = block / p.key_parts;
  const int64_t tiles = p.key_shares > 0 ? p.key_shares : p.key_tiles;
  const int64_t kv_heads = p.a.H / p.a.group;
  const int64_t first = rest % tiles, kv = rest / tiles % kv_heads, b = rest / tiles / kv_heads;
  const bool is_wide = p.careful_keys != nullptr;
  const int64_t at = rest * p.key_rounds + round;
  if (is_wide && (p.careful_keys[at] & GradData::kCareful) == 0) return;
  simt::SharedTiles shared;
  GradSums<T, GradPass::kKeys, kUnits, kTerms> sums(p, shared, static_cast<int>(part), round);
  // Where heads have gather orders of their own, a tile is of one head.
  const bool apart = p.key_shares > 0 && p.a.seqs[b].head_patterns != nullptr;
  const int64_t step = apart ? 1 : p.a.group;
  const int64_t end = (kv + 1) * p.a.group;
  int64_t h = kv * p.a.group;
  if (apart) h = sums.FirstHead(b, h, end, first, tiles);
  for (bool goes_on = true; goes_on && h < end; h += step) {
    goes_on = sums.RunTiles(b, h, step, first, tiles, static_cast<int>(first), is_wide);
  }
}

}  // namespace attnd::cuda::attend_grad
