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

// What a block reads now and then, in shared memory: registers are few.
struct ForwardConstants {
  ForwardPlace place;
  AttendHead head;
  ForwardTile tile;
  RowSource q, k, v, q_rel, r;
  Slope slope;

  template <class T>
  SIMT_FN void Set(const ForwardData& data, int64_t block) {
    const AttendData& p = data.p;
    place = ForwardPlace::Of(data, block);
    const int64_t b = place.b, h = place.h;
    head = AttendHead::Of(p, b, h);
    tile = ForwardTile::Of(data, head, place);
    if (tile.index < 0) return;
    const HeadRows none = {};
    q = RowSource::Of<T>(HeadRows::Of(p.q, b, h), none, INT64_MAX, p.D);
    k = RowSource::Of<T>(HeadRows::Of(p.k, b, head.kv), HeadRows::Of(p.k2, b, head.kv), p.Nk, p.D);
    v = RowSource::Of<T>(HeadRows::Of(p.v, b, head.kv), HeadRows::Of(p.v2, b, head.kv), p.Nk, p.Dv);
    q_rel = RowSource::Of<T>(HeadRows::Of(p.q_rel, b, h), none, INT64_MAX, p.D);
    r = RowSource::Of<T>(HeadRows::Of(p.r, b, h), none, INT64_MAX, p.D);
    slope = Slope::Of(p, b, h);
  }
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

  static size_t SharedBytes(bool has_relative) {
    size_t bytes = simt::SharedBytes<ForwardConstants>(1) + simt::SharedBytes<uint32_t>(4) +
                   2 * simt::SharedBytes<T>(kPiece);
    if (!kStreams) bytes += simt::SharedBytes<T>(64 * kStride);
    if (kTerms) bytes += simt::SharedBytes<float>(32 * kAttendThreads);
    if (kMayBeRelative && has_relative) bytes += simt::SharedBytes<float>(64 * kRelativeStride);
    return bytes;
  }
};

}  // namespace attnd::cuda
