// The shared memory of a block of attend's gradient.
#pragma once

#include <cstdint>

#include "kernels/cuda/attend/attend_grad_data.h"
#include "kernels/cuda/attend/attend_grad_tile.h"
#include "kernels/cuda/attend/attend_terms.h"
#include "kernels/cuda/simt.h"

namespace attnd::cuda::attend_grad {

enum class GradPass { kQueries, kKeys, kBias };

constexpr int kScoreStride = kSide + 1;

// The pairs of tiles that a pass meets of a head, by the tiles of its own side; null: all.
SIMT_FN const TileRunRows* SideOf(GradPass pass, const AttendHead& head) {
  if (head.pattern == nullptr) return nullptr;
  return pass == GradPass::kKeys ? &head.pattern->by_key : &head.pattern->by_query;
}
// Of its own tile `row`, where the other side has `tiles`; with those beyond that a pattern of more
// rows shows, at most.
SIMT_FN int64_t PairsOf(const TileRunRows* side, int64_t row, int64_t tiles) {
  if (side == nullptr) return tiles;
  return row < side->rows ? min(int64_t{side->CountOf(row)}, tiles) : 0;
}
SIMT_FN int64_t RoundsOf(GradPass pass, const GradData& p) {
  return pass == GradPass::kKeys ? p.key_rounds : p.query_rounds;
}
// In natural order those of all rows, which may see nothing.
SIMT_FN int64_t OwnTilesOf(GradPass pass, const GradData& p, const AttendHead& head) {
  const bool is_keys = pass == GradPass::kKeys;
  const bool in_order = (is_keys ? head.key_rows : head.query_rows) == nullptr;
  const int64_t gathered = is_keys ? head.keys : head.queries, all = is_keys ? p.a.Nk : p.a.Nq;
  return ((in_order ? all : gathered) + kSide - 1) / kSide;
}
// Tiles of the other side.
SIMT_FN int64_t OtherTilesOf(GradPass pass, const AttendHead& head) {
  return ((pass == GradPass::kKeys ? head.queries : head.keys) + kSide - 1) / kSide;
}

// A pair of tiles that a walk has come to.
struct GradStep {
  int64_t other_tile;
  int mask, terms;
  bool done;
};

// Shared memory of a block. What is the same in all threads lies here, too: registers hold sums.
// `chunks`: of D and Dv together, or 1.
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
  // Of a round: what the block's further tiles have, what this tile has, and what its further walks
  // have.
  PairRange *rest, *of_tile, *of_walks;
  GradStep* step;
  T *own, *other;

  SIMT_FN GradShared(simt::SharedTiles& shared, int chunks) {
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
    rest = shared.Take<PairRange>(3);
    of_tile = rest + 1, of_walks = rest + 2;
    step = shared.Take<GradStep>(1);
    own = shared.Take<T>(chunks * TileOf<T>::kElements);
    other = shared.Take<T>(chunks * TileOf<T>::kElements);
  }
  static constexpr size_t Bytes(int chunks) {
    return simt::SharedBytes<float>(kSide * kScoreStride) + 2 * simt::SharedBytes<uint64_t>(kSide) +
           2 * simt::SharedBytes<int32_t>(kSide) + simt::SharedBytes<GradRow>(kSide) +
           simt::SharedBytes<Position>(kSide) + simt::SharedBytes<float>(kSide) +
           simt::SharedBytes<uint32_t>(2) + simt::SharedBytes<AttendHead>(1) +
           simt::SharedBytes<TileWalk>(1) + simt::SharedBytes<PairRange>(3) +
           simt::SharedBytes<GradStep>(1) + 2 * simt::SharedBytes<T>(chunks * TileOf<T>::kElements);
  }
};

}  // namespace attnd::cuda::attend_grad
