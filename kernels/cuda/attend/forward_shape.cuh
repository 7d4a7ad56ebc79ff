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

// Tiles of keys [first, end) that the same of the block's tiles of queries see, each with one mask.
template <int kTiles>
struct KeyRun {
  int first, end;
  bool sees[kTiles];
  int mask[kTiles], terms[kTiles];

  SIMT_FN bool is_empty() const { return first >= end; }  // there are no more
};

// The runs of tiles that any of the block's tiles of queries sees, ascending, the last one empty.
// For one thread, which holds two at a time.
template <int kTiles>
struct KeyRuns {
  KeyRun<kTiles> list[2];
  TileWalk walks[kTiles];

  SIMT_FN void Start(const AttendHead& head, const ForwardTile* tiles) {
    for (int t = 0; t < kTiles; ++t) {
      const ForwardTile& tile = tiles[t];
      const bool sees = tile.index >= 0 && tile.index * kTile < head.queries;
      walks[t] =
          TileWalk(sees && head.pattern != nullptr ? &head.pattern->by_query : nullptr, tile.index,
                   sees ? (head.keys + kTile - 1) / kTile : 0, tile.skip, tile.count);
    }
  }
  // Writes list[at].
  SIMT_FN void Next(int at) {
    KeyRun<kTiles>& run = list[at];
    run.first = INT32_MAX, run.end = 0;
    for (int t = 0; t < kTiles; ++t) {
      if (!walks[t].done()) run.first = min(run.first, walks[t].index());
    }
    if (run.first == INT32_MAX) return;
    run.end = INT32_MAX;
    for (int t = 0; t < kTiles; ++t) {
      if (walks[t].done()) continue;
      run.end = min(run.end, walks[t].index() == run.first ? walks[t].end() : walks[t].index());
    }
    for (int t = 0; t < kTiles; ++t) {
      run.sees[t] = !walks[t].done() && walks[t].index() == run.first;
      if (!run.sees[t]) continue;
      run.mask[t] = walks[t].mask();
      run.terms[t] = walks[t].terms();
      walks[t].Next(run.end - run.first);
    }
  }
};

// What a block reads now and then, in shared memory: registers are few.
struct ForwardConstants {
  ForwardPlace place;
  AttendHead head;
  ForwardTile tile;
  RowSource q, k, v, q_rel, r;
  Slope slope;
  KeyRuns<1> runs;

  // Of the tile of queries of this rank; in_pairs: as ForwardTile. False: there is none.
  template <class T>
  SIMT_FN bool Set(const ForwardData& data, const ForwardPlace& at, int64_t rank, bool in_pairs) {
    const AttendData& p = data.p;
    place = at;
    const int64_t b = place.b, h = place.h;
    head = AttendHead::Of(p, b, h);
    if (!data.Needs(b, h)) return false;
    tile = ForwardTile::Of(data, head, place, rank, in_pairs);
    if (tile.index < 0) return false;
    const HeadRows none = {};
    q = RowSource::Of<T>(HeadRows::Of(p.q, b, h), none, INT64_MAX, p.D);
    k = RowSource::Of<T>(HeadRows::Of(p.k, b, head.kv), HeadRows::Of(p.k2, b, head.kv), p.Nk, p.D);
    v = RowSource::Of<T>(HeadRows::Of(p.v, b, head.kv), HeadRows::Of(p.v2, b, head.kv), p.Nk, p.Dv);
    q_rel = RowSource::Of<T>(HeadRows::Of(p.q_rel, b, h), none, INT64_MAX, p.D);
    r = RowSource::Of<T>(HeadRows::Of(p.r, b, h), none, INT64_MAX, p.D);
    slope = Slope::Of(p, b, h);
    return true;
  }
};

// Tiles of a block in shared memory.
template <class T>
struct ForwardTiles {
  uint32_t* odd_rows;  // two bits a key of the tile
  T *even, *odd;       // buffers of pieces in turn
  T* query;            // null: queries are pieces, too
};

// What the threads of a block agree on.
template <class T, int kWidth, bool kStreams, bool kTerms>
struct ForwardShape {
  static constexpr int kStride = TileStride<T>(kWidth);
  // Of a streamed problem: rows of queries and of keys, or of values, in chunks of columns.
  static constexpr int kValueWidth = kStreams ? 128 : kWidth;
  static constexpr int kValueStride = TileStride<T>(kValueWidth);
  static constexpr int kKeyPiece = (kStreams ? 2 : 1) * 64 * kStride;
  static constexpr int kValuePiece = 64 * kValueStride;
  static constexpr int kPiece = kKeyPiece > kValuePiece ? kKeyPiece : kValuePiece;
  static constexpr bool kMayBeRelative = kStreams && kTerms && std::is_same_v<T, float>;

  // `queries`: tiles of them.
  SIMT_FN static ForwardTiles<T> TakeTiles(simt::SharedTiles& shared, int queries) {
    ForwardTiles<T> tiles;
    tiles.odd_rows = shared.Take<uint32_t>(4);
    tiles.even = shared.Take<T>(kPiece);
    tiles.odd = shared.Take<T>(kPiece);
    tiles.query = kStreams ? nullptr : shared.Take<T>(queries * 64 * kStride);
    return tiles;
  }
  // Of those and the constants.
  static size_t SharedBytes(int queries) {
    size_t bytes = simt::SharedBytes<ForwardConstants>(1) + simt::SharedBytes<uint32_t>(4) +
                   2 * simt::SharedBytes<T>(kPiece);
    if (!kStreams) bytes += simt::SharedBytes<T>(queries * 64 * kStride);
    return bytes;
  }
  // Of all that ForwardBlock takes.
  static size_t SharedBytesOfBlock(bool has_relative) {
    size_t bytes = SharedBytes(1);
    if (kTerms) bytes += simt::SharedBytes<float>(32 * kAttendThreads);
    if (kMayBeRelative && has_relative) bytes += simt::SharedBytes<float>(64 * kRelativeStride);
    return bytes;
  }
};

}  // namespace attnd::cuda
