// The shared memory of a block of the forward kernel of attend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attend/attend_forward.h"
#include "kernels/cuda/attend/attend_params.h"
#include "kernels/cuda/attend/attend_relative.cuh"
#include "kernels/cuda/attend/attend_terms.h"
#include "kernels/cuda/attend/attend_tiles.h"
#include "kernels/cuda/simt.h"

namespace attnd::cuda {

// A tile of keys, and what each of the block's tiles of queries sees of it.
template <int kTiles>
struct ForwardStep {
  int64_t key_tile;
  bool is_done;  // there is none
  bool sees[kTiles];
  int mask[kTiles], terms[kTiles];
};

// What a block reads now and then, in shared memory: registers are few.
template <int kTiles>
struct ForwardConstants {
  ForwardPlace place;
  AttendHead head;
  ForwardTile tiles[kTiles];
  RowSource q, k, v, q_rel, r;
  Slope slope;

  TileWalk walks[kTiles];
  ForwardStep<kTiles> steps[2];

  // False: the block has no tile of queries.
  template <class T>
  SIMT_FN bool Set(const ForwardData& data, int64_t block) {
    const AttendData& p = data.p;
    place = ForwardPlace::Of(data, block);
    const int64_t b = place.b, h = place.h;
    head = AttendHead::Of(p, b, h);
    if (!data.Needs(b, h)) return false;
    bool has_tile = false;
    for (int t = 0; t < kTiles; ++t) {
      tiles[t] = ForwardTile::Of(data, head, place, place.rank * kTiles + t, kTiles > 1);
      has_tile = has_tile || tiles[t].index >= 0;
    }
    if (!has_tile) return false;
    const HeadRows none = {};
    q = RowSource::Of<T>(HeadRows::Of(p.q, b, h), none, INT64_MAX, p.D);
    k = RowSource::Of<T>(HeadRows::Of(p.k, b, head.kv), HeadRows::Of(p.k2, b, head.kv), p.Nk, p.D);
    v = RowSource::Of<T>(HeadRows::Of(p.v, b, head.kv), HeadRows::Of(p.v2, b, head.kv), p.Nk, p.Dv);
    q_rel = RowSource::Of<T>(HeadRows::Of(p.q_rel, b, h), none, INT64_MAX, p.D);
    r = RowSource::Of<T>(HeadRows::Of(p.r, b, h), none, INT64_MAX, p.D);
    slope = Slope::Of(p, b, h);
    return true;
  }

  // Steps of a pass over the keys: the tiles that any of the block's tiles sees, ascending. For one
  // thread; Next(parity) writes steps[parity].
  SIMT_FN void Start() {
    const PatternData* pattern = head.pattern;
    for (int t = 0; t < kTiles; ++t) {
      const ForwardTile& tile = tiles[t];
      const bool sees = tile.index >= 0 && tile.index * kTile < head.queries;
      walks[t] = TileWalk(sees && pattern != nullptr ? &pattern->by_query : nullptr, tile.index,
                          sees ? (head.keys + kTile - 1) / kTile : 0, tile.skip, tile.count);
    }
  }
  SIMT_FN void Next(int parity) {
    ForwardStep<kTiles>& step = steps[parity];
    step.is_done = true;
    for (int t = 0; t < kTiles; ++t) {
      if (walks[t].done() || (!step.is_done && walks[t].index() >= step.key_tile)) continue;
      step.key_tile = walks[t].index();
      step.is_done = false;
    }
    for (int t = 0; t < kTiles; ++t) {
      step.sees[t] = !walks[t].done() && walks[t].index() == step.key_tile;
      if (!step.sees[t]) continue;
      step.mask[t] = walks[t].mask();
      step.terms[t] = walks[t].terms();
      walks[t].Next();
    }
  }
};

// What the threads of a block agree on.
template <class T, int kWidth, bool kStreams, bool kTerms, int kTiles>
struct ForwardShape {
  static_assert(kTiles == 1 || (!kStreams && !kTerms && sizeof(T) == 2));
  static constexpr int kStride = TileStride<T>(kWidth);
  // Of a streamed problem: rows of queries and of keys, or of values, in chunks of columns.
  static constexpr int kValueWidth = kStreams ? 128 : kWidth;
  static constexpr int kValueStride = TileStride<T>(kValueWidth);
  static constexpr int kKeyPiece = (kStreams ? 2 : 1) * 64 * kStride;
  static constexpr int kValuePiece = 64 * kValueStride;
  static constexpr int kPiece = kKeyPiece > kValuePiece ? kKeyPiece : kValuePiece;
  static constexpr bool kMayBeRelative = kStreams && kTerms && std::is_same_v<T, float>;

  static size_t SharedBytes(bool has_relative) {
    size_t bytes = simt::SharedBytes<ForwardConstants<kTiles>>(1) + simt::SharedBytes<uint32_t>(4) +
                   2 * simt::SharedBytes<T>(kPiece);
    if (!kStreams) bytes += simt::SharedBytes<T>(kTiles * 64 * kStride);
    if (kTerms) bytes += simt::SharedBytes<float>(32 * kAttendThreads);
    if (kMayBeRelative && has_relative) bytes += simt::SharedBytes<float>(64 * kRelativeStride);
    return bytes;
  }
};

}  // namespace attnd::cuda
