// What a block of attention's gradient over tiles meets in a launch: its round.
#pragma once

#include <cstdint>

#include "kernels/cuda/attend/attend_grad_data.h"
#include "kernels/cuda/attend/attend_grad_tile.h"
#include "kernels/cuda/attend/attend_params.h"
#include "kernels/cuda/simt.h"

namespace attnd::cuda::attend_grad {

enum class GradPass { kQueries, kKeys, kBias };

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

// Goes on from query head *h to the one, below `end`, in which `range` of the pairs of a block
// begins, or to one not far before it. pairs_of(h): those of a head. For all lanes of one warp.
template <class F>
SIMT_FN void SkipHeads(int64_t end, const F& pairs_of, int64_t* h, PairRange* range) {
  for (; *h + 32 < end; *h += 32) {
    auto pairs = static_cast<unsigned long long>(pairs_of(*h + threadIdx.x % 32));
    for (int flip = 1; flip < 32; flip *= 2) pairs += __shfl_xor_sync(simt::kAllLanes, pairs, flip);
    if (range->skip < static_cast<int64_t>(pairs)) return;
    range->skip -= static_cast<int64_t>(pairs);
  }
}
// Of one own tile.
SIMT_FN void SkipHeads(GradPass pass, const GradData& p, int64_t b, int64_t end, int64_t tile,
                       int64_t* h, PairRange* range) {
  const auto pairs_of = [&](int64_t of) {
    const AttendHead head = AttendHead::Of(p.a, b, of);
    return PairsOf(SideOf(pass, head), tile, OtherTilesOf(pass, head));
  };
  if (p.a.seqs[b].head_patterns != nullptr) return SkipHeads(end, pairs_of, h, range);
  const int64_t pairs = pairs_of(*h);
  const int64_t heads = pairs == 0 ? 0 : min(range->skip / pairs, end - 1 - *h);
  *h += heads;
  range->skip -= heads * pairs;
}

// Where a block is in its round.
struct GradRound {
  PairRange rest;      // what further own tiles have
  PairRange of_tile;   // what this own tile has, from query head `first` on
  PairRange of_walks;  // likewise, what further walks have
  int64_t tile, first;

  // To the next own tile of query heads [h, h + heads), of own, own + apart, ... below `end`, that
  // has some of it. tile = -1: there is none. For all lanes of one warp.
  SIMT_FN void FindTile(GradPass pass, const GradData& p, int64_t b, int64_t h, int64_t heads,
                        int64_t own, int64_t apart, int64_t end) {
    tile = -1, first = h;
    for (; own < end && rest.take > 0; own += apart) {
      ComeTo(pass, p, b, heads, own);
      if (of_tile.take > 0) {
        tile = own;
        return;
      }
    }
  }
  // To the query head from h on, below `end`, in which it begins, or to one not far before it,
  // where heads have own tiles of their own: own, own + apart, ... For all lanes of one warp.
  SIMT_FN void FindHead(GradPass pass, const GradData& p, int64_t b, int64_t h, int64_t end,
                        int64_t own, int64_t apart) {
    first = h;
    SkipHeads(
        end,
        [&](int64_t of) {
          const AttendHead head = AttendHead::Of(p.a, b, of);
          int64_t pairs = 0;
          for (int64_t row = own; row < OwnTilesOf(pass, p, head); row += apart) {
            pairs += PairsOf(SideOf(pass, head), row, OtherTilesOf(pass, head));
          }
          return pairs;
        },
        &first, &rest);
  }

 private:
  // What own tile `own` has of it, which it leaves behind.
  SIMT_FN void ComeTo(GradPass pass, const GradData& p, int64_t b, int64_t heads, int64_t own) {
    of_tile = rest;
    if (RoundsOf(pass, p) == 1) return;
    if (heads > 1 && p.a.seqs[b].head_patterns != nullptr) {
      // Only in natural order, where a block has one tile.
      rest = {0, 0};
    } else {
      const AttendHead head = AttendHead::Of(p.a, b, first);
      const int64_t pairs = PairsOf(SideOf(pass, head), own, OtherTilesOf(pass, head));
      of_tile = rest.Pass(heads * pairs);
    }
    if (of_tile.take > 0) SkipHeads(pass, p, b, first + heads, own, &first, &of_tile);
  }
};

// f(round), which one warp calls, of what all threads of the block share.
template <class F>
SIMT_FN void InOneWarp(GradRound* shared, const F& f) {
  __syncthreads();
  if (threadIdx.x < 32) {
    GradRound round = *shared;
    __syncwarp();
    f(round);
    if (threadIdx.x == 0) *shared = round;
  }
  __syncthreads();
}

}  // namespace attnd::cuda::attend_grad
