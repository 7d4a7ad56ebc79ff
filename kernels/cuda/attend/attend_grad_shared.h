// The shared memory of a block of attend's gradient.
#pragma once

#include <cstdint>

#include "kernels/cuda/attend/attend_grad_data.h"
#include "kernels/cuda/attend/attend_grad_round.h"
#include "kernels/cuda/attend/attend_grad_tile.h"
#include "kernels/cuda/attend/attend_relative.cuh"
#include "kernels/cuda/attend/attend_terms.h"
#include "kernels/cuda/simt.h"

namespace attnd::cuda::attend_grad {

constexpr int kScoreStride = kSide + 1;

// A pair of tiles that a walk has come to.
struct GradStep {
  int64_t other_tile;
  int mask, terms;
  bool done;
};

// Shared memory of a block. What is the same in all threads lies here, too: registers hold sums.
// `chunks`: of D and Dv together, or 1. has_relative: the relative term is given.
template <class T>
struct GradShared {
  float* scores;                   // [own row][other row]
  uint64_t* seen_by_query;         // of the tile of keys, by masks
  uint64_t* seen_by_own;           // of the other tile, by masks and bias; where they are needed
  int32_t *own_rows, *other_rows;  // -1: none, or one that sees nothing
  GradRow* rows;                   // of queries
  Position* positions;             // of queries
  float* key_bias;
  uint32_t* keys_exist;  // bits
  AttendHead* head;      // of the queries
  TileWalk* walk;        // of the first thread
  GradRound* round;
  GradStep* step;
  T *own, *other;
  // Of the relative term: its products [query][distance from the window's first one on], and the
  // rows of r that they are made of.
  float* relative = nullptr;
  int32_t* relative_rows = nullptr;

  SIMT_FN GradShared(simt::SharedTiles& shared, int chunks, bool has_relative) {
    scores = shared.Take<float>(kSide * kScoreStride);
    seen_by_query = shared.Take<uint64_t>(kSide);
    seen_by_own = shared.Take<uint64_t>(kSide);
    own_rows = shared.Take<int32_t>(kSide);
    other_rows = shared.Take<int32_t>(kSide);
    rows = shared.Take<GradRow>(kSide);
    positions = shared.Take<Position>(kSide);
    key_bias = shared.Take<float>(kSide);
    keys_exist = shared.Take<uint32_t>(2);
    head = shared.Take<AttendHead>(1);
    walk = shared.Take<TileWalk>(1);
    round = shared.Take<GradRound>(1);
    step = shared.Take<GradStep>(1);
    own = shared.Take<T>(chunks * TileOf<T>::kElements);
    other = shared.Take<T>(chunks * TileOf<T>::kElements);
    if (!has_relative) return;
    relative = shared.Take<float>(kSide * kRelativeStride);
    relative_rows = shared.Take<int32_t>(kSide);
  }
  static constexpr size_t Bytes(int chunks, bool has_relative) {
    const size_t of_relative =
        simt::SharedBytes<float>(kSide * kRelativeStride) + simt::SharedBytes<int32_t>(kSide);
    return (has_relative ? of_relative : 0) + simt::SharedBytes<float>(kSide * kScoreStride) +
           2 * simt::SharedBytes<uint64_t>(kSide) + 2 * simt::SharedBytes<int32_t>(kSide) +
           simt::SharedBytes<GradRow>(kSide) + simt::SharedBytes<Position>(kSide) +
           simt::SharedBytes<float>(kSide) + simt::SharedBytes<uint32_t>(2) +
           simt::SharedBytes<AttendHead>(1) + simt::SharedBytes<TileWalk>(1) +
           simt::SharedBytes<GradRound>(1) + simt::SharedBytes<GradStep>(1) +
           2 * simt::SharedBytes<T>(chunks * TileOf<T>::kElements);
  }
};

}  // namespace attnd::cuda::attend_grad
