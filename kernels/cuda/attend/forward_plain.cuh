// What most blocks of attend's forward kernels do: rows in natural order that fill their tiles,
// numbers that are finite, no terms. Nothing else is in the loop over tiles of keys, which then
// fits the instruction cache; ForwardBlock computes blocks that turn out to need more.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attend/attend_forward.h"
#include "kernels/cuda/attend/attend_params.h"
#include "kernels/cuda/attend/attend_tiles.h"
#include "kernels/cuda/attend/forward_shape.cuh"
#include "kernels/cuda/attend/forward_sums.cuh"
#include "kernels/cuda/simt.h"

namespace attnd::cuda {

// What the threads of a block share, in shared memory.
template <class T, int kTiles>
struct PlainConstants {
  struct Rows {
    const T* first;
    int64_t apart;

    SIMT_FN static Rows Of(const Plane& plane, int64_t b, int64_t h) {
      const HeadRows rows = HeadRows::Of(plane, b, h);
      return {static_cast<const T*>(rows.data), rows.row};
    }
  };

  ForwardPlace place;
  AttendHead head;
  ForwardTile tiles[kTiles];
  Rows k, v;
  KeyRuns<kTiles> runs;

  // False: the block has no tile of queries.
  SIMT_FN bool Set(const ForwardData& data, int64_t block) {
    place = ForwardPlace::Of(data, block);
    if (!data.Needs(place.b, place.h)) return false;
    head = AttendHead::Of(data.p, place.b, place.h);
    bool has_tile = false;
    for (int t = 0; t < kTiles; ++t) {
      tiles[t] = ForwardTile::Of(data, head, place, place.rank * kTiles + t, kTiles > 1);
      has_tile = has_tile || tiles[t].index >= 0;
    }
    k = Rows::Of(data.p.k, place.b, head.kv);
    v = Rows::Of(data.p.v, place.b, head.kv);
    return has_tile;
  }
};

template <class T, int kWidth, int kTiles>
class ForwardPlain : ForwardSums<kWidth, kTiles> {
  using Shape = ForwardShape<T, kWidth, false, false>;
  using Sums = ForwardSums<kWidth, kTiles>;
  using Sums::kRows, Sums::Score, Sums::s_, Sums::out_;
  static constexpr int kStride = Shape::kStride;

 public:
  // REQUIRES: `constants` are set.
  SIMT_FN ForwardPlain(const ForwardData& data, PlainConstants<T, kTiles>& constants,
                       const ForwardTiles<T>& tiles)
      : p_(data.p),
        c_(constants),
        tiles_(tiles),
        lane_(threadIdx.x % 32),
        tile_(threadIdx.x * kTiles / kAttendThreads),
        warp_row_(threadIdx.x / 32 * (16 * kTiles) % 64),
        whole_tiles_(static_cast<int>(c_.head.keys / kTile)) {}

  // False: a sum is not finite, and nothing is stored.
  SIMT_FN bool Run() {
#pragma unroll 1
    for (int t = 0; t < kTiles; ++t) {
      if (c_.tiles[t].index < 0) continue;
      const RowSource q = {
          HeadRows::Of(p_.q, c_.place.b, c_.place.h), {}, INT64_MAX, kWidth, true, false};
      LoadTile<T, kWidth>(tiles_.query + t * 64 * kStride, kStride, q, 0,
                          c_.head.QueryRows(c_.tiles[t].index * 64));
    }
    Walk();
    if (__syncthreads_or(this->HasOdd())) return false;
    const int64_t index = c_.tiles[tile_].index;
    if (index >= 0) this->StoreRows(p_, c_.head, index * 64 + warp_row_, 0, kWidth);
    return true;
  }

 private:
  SIMT_FN void Walk() {
    this->Clear(-INFINITY);
    if (threadIdx.x == 0) {
      c_.runs.Start(c_.head, c_.tiles);
      c_.runs.Next(0);
    }
    __syncthreads();
    const T* queries = tiles_.query + (tile_ * 64 + warp_row_) * kStride;
    const int64_t index = c_.tiles[tile_].index;
    const bool exists = index >= 0 && index * 64 + warp_row_ < c_.head.queries;
    int at = 0;
    if (!c_.runs.list[0].is_empty()) Load(c_.k, c_.runs.list[0].first, tiles_.even);
    simt::CopyCommit();
    for (; !c_.runs.list[at].is_empty(); at ^= 1) {
      const KeyRun<kTiles>& run = c_.runs.list[at];
      const bool sees = exists && run.sees[tile_];
      const int mask = run.mask[tile_], end = run.end;
#pragma unroll 1
      for (int tile = run.first; tile < end; ++tile) {
        // The keys have arrived, and no thread reads the values before them.
        simt::CopyWait<0>();
        __syncthreads();
        Load(c_.v, tile, tiles_.odd);
        simt::CopyCommit();
        // No thread is in the run before this one, and there is a barrier until the next.
        if (tile == run.first && threadIdx.x == 0) c_.runs.Next(at ^ 1);
        if (sees) {
          this->ClearScores();
          AddProducts<T, kWidth, true>(s_, queries, tiles_.even, kStride, kWidth);
          if (mask >= 0 || tile >= whole_tiles_) Hide(mask, tile);
          Soften();
        }
        // The values have, and no thread reads the keys.
        simt::CopyWait<0>();
        __syncthreads();
        if (tile + 1 < end) {
          Load(c_.k, tile + 1, tiles_.even);
        } else if (!c_.runs.list[at ^ 1].is_empty()) {
          Load(c_.k, c_.runs.list[at ^ 1].first, tiles_.even);
        }
        simt::CopyCommit();
        if (sees) {
          AddWeighted<T, kWidth, std::is_same_v<T, float>, true>(out_, s_, tiles_.odd,
                                                                 Shape::kValueStride, kWidth);
        }
      }
    }
    // Of keys, where there was no tile of queries: also before shared memory is used again.
    simt::CopyWait<0>();
  }

  SIMT_FN void Soften() {
    if constexpr (std::is_same_v<T, float>) {
      // As ForwardBlock does.
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          Score(r, n, 0) = ScaledProduct(p_.scale, Score(r, n, 0));
          Score(r, n, 1) = ScaledProduct(p_.scale, Score(r, n, 1));
        }
      }
      Sums::template Soften<true>(1);
    } else {
      Sums::template Soften<false>(p_.scale);
    }
  }

  // Starts to load rows of a tile; zeros where there is none.
  SIMT_FN void Load(const typename PlainConstants<T, kTiles>::Rows& rows, int tile,
                    T* buffer) const {
    constexpr int kPer = 16 / sizeof(T), kChunks = kWidth / kPer, kApart = kAttendThreads / kChunks;
    const int top = threadIdx.x / kChunks, c = threadIdx.x % kChunks * kPer;
    const T* from = rows.first + (int64_t{tile} * 64 + top) * rows.apart + c;
    const int64_t apart = rows.apart * kApart;
    T* to = buffer + top * kStride + c;
    if (tile < whole_tiles_) {
#pragma unroll
      for (int r = 0; r < 64; r += kApart, from += apart) {
        simt::CopyAsync<16>(to + r * kStride, from, true);
      }
      return;
    }
    const int left = static_cast<int>(c_.head.keys) - tile * 64 - top;
#pragma unroll
    for (int r = 0; r < 64; r += kApart, from += apart) {
      simt::CopyAsync<16>(to + r * kStride, from, r < left);
    }
  }

  SIMT_FN void Hide(int mask, int tile) {
    const int64_t left = c_.head.keys - int64_t{tile} * 64;
    const uint64_t keys = left >= 64 ? ~uint64_t{0} : (uint64_t{1} << left) - 1;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      uint64_t sees = keys;
      if (mask >= 0) {
        sees &= c_.head.pattern->masks[int64_t{mask} * kTile + warp_row_ + lane_ / 4 + r * 8];
      }
      sees >>= lane_ % 4 * 2;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if ((sees >> (n * 8 + i) & 1) == 0) Score(r, n, i) = -INFINITY;
        }
      }
    }
  }

  const AttendData& p_;
  PlainConstants<T, kTiles>& c_;
  const ForwardTiles<T> tiles_;
  const int lane_;
  const int tile_, warp_row_;  // of the warp: its tile of the block's, its first row there
  const int whole_tiles_;      // of keys
};

}  // namespace attnd::cuda
