// Flash attention forward (Dao et al. 2022; online softmax of Milakov & Gimelshein 2018): a block of
// four warps for 64 query slots of one head, a warp for 16. Keys and values pass through two buffers
// of shared memory, values while scores are computed and the next keys while weights are; scores,
// weights and sums stay in registers.
//
// Bound: the tensor cores, 4 x 64 x 64 x D FLOPs a tile of 16-bit elements at about 0.6 of mma.sync's
// rate (exponentials and fragments take the rest), a third of that at a half of the rate with
// float32. Few queries on many keys: the bytes of k and v.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attend/attend_forward.h"
#include "kernels/cuda/attend/attend_params.h"
#include "kernels/cuda/attend/attend_relative.cuh"
#include "kernels/cuda/attend/attend_terms.h"
#include "kernels/cuda/attend/attend_tiles.h"
#include "kernels/cuda/simt.h"
#include "kernels/cuda/views.h"

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
    v = RowSource::Of<T>(HeadRows::Of(p.v, b, head.kv), HeadRows::Of(p.v2, b, head.kv), p.Nk,
                         p.Dv);
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

template <class T, int kWidth, bool kStreams, bool kTerms>
class ForwardBlock {
  using Shape = ForwardShape<T, kWidth, kStreams, kTerms>;
  static constexpr int kColumns = Shape::kValueWidth;

 public:
  // REQUIRES: `constants` are set.
  SIMT_FN ForwardBlock(const ForwardData& data, const ForwardConstants& constants,
                       simt::SharedTiles shared)
      : data_(data),
        p_(data.p),
        c_(constants),
        lane_(threadIdx.x % 32),
        warp_(threadIdx.x / 32),
        first_slot_(constants.tile.index * kTile) {
    odd_rows_ = shared.Take<uint32_t>(4);
    even_ = shared.Take<T>(Shape::kPiece);
    odd_ = shared.Take<T>(Shape::kPiece);
    if constexpr (!kStreams) query_tile_ = shared.Take<T>(64 * Shape::kStride);
    if constexpr (kTerms) scores_ = shared.Take<float>(32 * kAttendThreads) + threadIdx.x;
    value_column_ = c_.place.value_part * kColumns;
    value_width_ = min(p_.Dv - value_column_, kColumns);
    warp_sees_ = first_slot_ + warp_ * 16 < c_.head.queries;
    scale_ = p_.scale;
    if constexpr (Shape::kMayBeRelative) {
      if (p_.r.data != nullptr) {
        relative_ = shared.Take<float>(64 * kRelativeStride);
        queries_ = RangeOfRows([&](int64_t i) { return QueryRow(i); });
      }
    }
  }

  // Numbers that are not finite are rare: what hides them, so that they reach only rows that see
  // them, costs time and comes second.
  SIMT_FN void Run() {
    if constexpr (!kStreams) {
      LoadTile<T, kWidth>(query_tile_, Shape::kStride, c_.q, 0,
                          [&](int r) { return QueryRow(r); });
    }
    for (int careful = 0; careful < 2; ++careful) {
      is_careful_ = careful != 0;
      Walk();
      if (!__syncthreads_or(HasOdd())) break;
    }
    if (c_.tile.is_whole) {
      Store();
    } else {
      Save();
    }
  }

 private:
  static constexpr int kKeys = 0, kRelative = 1, kValues = 2;

  SIMT_FN int RowOfTile(int r) const { return warp_ * 16 + lane_ / 4 + r * 8; }
  SIMT_FN int64_t QueryRow(int64_t i) const { return c_.head.QueryRow(first_slot_ + i); }
  SIMT_FN int Chunks() const { return kStreams ? (p_.D + kWidth - 1) / kWidth : 1; }
  // Pieces of a key tile: chunks of keys, chunks of two halves of the distances, values.
  SIMT_FN int Pieces(const RelativeWindow& window) const {
    if constexpr (Shape::kMayBeRelative) {
      if (window.is_shared) return 3 * Chunks() + 1;
    }
    return Chunks() + 1;
  }
  SIMT_FN RelativeWindow WindowOf(int64_t tile) const {
    if constexpr (Shape::kMayBeRelative) {
      if (p_.r.data != nullptr) {
        const RowRange keys =
            RangeOfRows([&](int64_t i) { return c_.head.KeyRow(tile * kTile + i); });
        return RelativeWindow::Of(queries_, keys, c_.head.offset, p_.L);
      }
    }
    return {false, 0};
  }

  SIMT_FN T* Buffer(int parity) const { return parity == 0 ? even_ : odd_; }
  // Starts to load a piece of a key tile.
  SIMT_FN void Load(int piece, const RelativeWindow& window, int64_t key_tile, T* buffer) const {
    const auto key_row = [&](int r) { return c_.head.KeyRow(key_tile * kTile + r); };
    if (piece == Pieces(window) - 1) {
      LoadTile<T, kColumns>(buffer, Shape::kValueStride, c_.v, value_column_, key_row);
      return;
    }
    if constexpr (!kStreams) {
      LoadTile<T, kWidth>(buffer, Shape::kStride, c_.k, 0, key_row);
    } else {
      const int part = piece / Chunks(), column = piece % Chunks() * kWidth;
      const auto query_row = [&](int r) { return QueryRow(r); };
      T* right = buffer + 64 * Shape::kStride;
      if (part == 0) {
        LoadTile<T, kWidth>(buffer, Shape::kStride, c_.q, column, query_row);
        LoadTile<T, kWidth>(right, Shape::kStride, c_.k, column, key_row);
      } else if constexpr (Shape::kMayBeRelative) {
        LoadTile<T, kWidth>(buffer, Shape::kStride, c_.q_rel, column, query_row);
        LoadTile<T, kWidth>(right, Shape::kStride, c_.r, column, [&](int r) {
          const int64_t delta = window.first + (part - 1) * 64 + r;
          return delta < p_.L ? delta : int64_t{-1};
        });
      }
    }
  }

  SIMT_FN void Walk() {
    Clear();
    const PatternData* pattern = c_.head.pattern;
    TileWalk walk(pattern == nullptr ? nullptr : &pattern->by_query, c_.tile.index,
                  first_slot_ < c_.head.queries ? (c_.head.keys + kTile - 1) / kTile : 0, c_.tile.skip,
                  c_.tile.count);
    int parity = 0;
    RelativeWindow window = {false, 0};
    if (!walk.done()) {
      window = WindowOf(walk.index());
      Load(0, window, walk.index(), even_);
    }
    simt::CopyCommit();
    while (!walk.done()) {
      key_tile_ = walk.index();
      mask_ = walk.mask();
      terms_ = walk.terms();
      const RelativeWindow own = window;
      walk.Next();
      if (!walk.done()) window = WindowOf(walk.index());
      const int pieces = Pieces(own);
      for (int piece = 0; piece < pieces; ++piece, parity ^= 1) {
        // This piece has arrived, and no thread reads the one before it.
        simt::CopyWait<0>();
        __syncthreads();
        if (piece + 1 < pieces) {
          Load(piece + 1, own, key_tile_, Buffer(parity ^ 1));
        } else if (!walk.done()) {
          Load(0, window, walk.index(), Buffer(parity ^ 1));
        }
        simt::CopyCommit();
        T* buffer = Buffer(parity);
        if (piece + 1 < pieces) {
          if (warp_sees_) Multiply(piece, buffer);
          if (piece + 2 == pieces && warp_sees_) Weigh(own);
          continue;
        }
        if (is_careful_) FindOddRows(buffer);
        if (warp_sees_) {
          AddWeighted<T, kColumns>(out_, s_, buffer, Shape::kValueStride, value_width_);
          if (is_careful_) AddOddRows();
        }
      }
    }
    // Before the buffers are used again.
    __syncthreads();
  }

  SIMT_FN void Clear() {
#pragma unroll
    for (int m = 0; m < kColumns / 8; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out_[m][i] = 0;
    }
    // A sink is a key that has been seen, with the value 0. Of parts the merged row counts it.
    const float sink = c_.tile.is_whole && p_.is_softmax() ? SinkOf(p_, c_.head.b, c_.head.h) : -INFINITY;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      max_[r] = p_.is_softmax() ? sink * kLog2E : 0.0f;
      sum_[r] = sink > -INFINITY && lane_ % 4 == 0 ? 1.0f : 0.0f;
    }
  }

  // Scores of the pieces so far.
  SIMT_FN void Multiply(int piece, const T* buffer) {
    constexpr int kStep = kProductStep<T>;
    const int chunks = Chunks(), part = piece / chunks, chunk = piece % chunks;
    const int width = (min(p_.D - chunk * kWidth, kWidth) + kStep - 1) / kStep * kStep;
    const T* left = kStreams ? buffer : query_tile_;
    const T* right = kStreams ? buffer + 64 * Shape::kStride : buffer;
    left += warp_ * 16 * Shape::kStride;
    if (part == 0) {
      if (chunk == 0) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) s_[n][i] = 0;
        }
      }
      AddProducts<T, kWidth>(s_, left, right, Shape::kStride, width);
    } else if constexpr (Shape::kMayBeRelative) {
      if (chunk == 0) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) by_distance_[n][i] = 0;
        }
      }
      AddProducts<T, kWidth>(by_distance_, left, right, Shape::kStride, width);
      if (chunk == chunks - 1) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            relative_[RowOfTile(i >> 1) * kRelativeStride + (part - 1) * 64 + n * 8 +
                      lane_ % 4 * 2 + (i & 1)] = by_distance_[n][i];
          }
        }
      }
    }
  }

  // Bits [n * 4 + i]: the pair is hidden.
  SIMT_FN uint32_t HiddenByMask() const {
    uint64_t keys = LowBitsOf(c_.head.keys - key_tile_ * kTile);
    if (c_.head.key_rows != nullptr) {
      const unsigned low =
          __ballot_sync(simt::kAllLanes, c_.head.KeyRow(key_tile_ * kTile + lane_) >= 0);
      const unsigned high =
          __ballot_sync(simt::kAllLanes, c_.head.KeyRow(key_tile_ * kTile + 32 + lane_) >= 0);
      keys &= uint64_t{high} << 32 | low;
    }
    uint32_t hidden = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint64_t sees = keys;
      // Terms are read where their query is.
      if (kTerms && QueryRow(RowOfTile(r)) < 0) sees = 0;
      if (mask_ >= 0) sees &= c_.head.pattern->masks[int64_t{mask_} * kTile + RowOfTile(r)];
      if (sees == ~uint64_t{0}) continue;
      sees >>= lane_ % 4 * 2;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const auto two = static_cast<uint32_t>(sees >> n * 8) & 3;
        hidden |= (two ^ 3) << (n * 4 + r * 2);
      }
    }
    return hidden;
  }
  SIMT_FN static uint64_t LowBitsOf(int64_t n) {
    return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1;
  }

  SIMT_FN int64_t KeyRowOf(int n, int i) const {
    return c_.head.KeyRow(key_tile_ * kTile + n * 8 + lane_ % 4 * 2 + (i & 1));
  }

  // Turns products into weights, and rescales the sums.
  SIMT_FN void Weigh(const RelativeWindow& window) {
    hidden_ = HiddenByMask();
    if constexpr (kTerms) {
      AddTerms(window);
      if (!p_.is_softmax()) return;
    } else {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s_[n][i] *= scale_;
      }
      if (std::is_same_v<T, float> && is_careful_) MendScores();
      if (hidden_ != 0) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if ((hidden_ >> (n * 4 + i) & 1) != 0) s_[n][i] = -INFINITY;
          }
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = -INFINITY;
#pragma unroll
      for (int n = 0; n < 8; ++n) most = fmaxf(most, fmaxf(s_[n][r * 2], s_[n][r * 2 + 1]));
      const float old = max_[r];
      max_[r] = fmaxf(old, QuadMax(most));
      // A row that has seen nothing: -inf - 0 instead of -inf - -inf.
      const float base = max_[r] == -INFINITY ? 0.0f : max_[r];
      const float decay = simt::Exp2(old - base);
      float sum = sum_[r] * decay;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int i = r * 2; i < r * 2 + 2; ++i) {
          s_[n][i] = simt::Exp2(s_[n][i] - base);
          sum += s_[n][i];
        }
      }
      sum_[r] = sum;
#pragma unroll
      for (int m = 0; m < kColumns / 8; ++m) {
#pragma unroll
        for (int i = r * 2; i < r * 2 + 2; ++i) out_[m][i] *= decay;
      }
    }
  }

  // Products become scores, or weights where no softmax follows. In shared memory, where a loop
  // may run over them.
  SIMT_FN void AddTerms(const RelativeWindow& window) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores_[(n * 4 + i) * kAttendThreads] = s_[n][i];
    }
    if constexpr (Shape::kMayBeRelative) {
      if (window.is_shared) __syncwarp();
    }
    const PatternData* pattern = c_.head.pattern;
    const TermsData* terms = terms_ < 0 ? nullptr : &pattern->terms[terms_];
    const bool has_key_bias = pattern != nullptr && pattern->key_bias != nullptr;
    float seen[2] = {0, 0};
#pragma unroll 1
    for (int e = 0; e < 32; ++e) {
      if ((hidden_ >> e & 1) != 0) {
        scores_[e * kAttendThreads] = p_.is_softmax() ? -INFINITY : 0.0f;
        continue;
      }
      const int n = e / 4, i = e % 4, r = i >> 1;
      const int64_t slot = key_tile_ * kTile + n * 8 + lane_ % 4 * 2 + (i & 1);
      PairTerms pair;
      pair.query_row = QueryRow(RowOfTile(r));
      pair.key_row = c_.head.KeyRow(slot);
      pair.position = Position::Of(pair.query_row, c_.head.offset);
      pair.slope = c_.slope;
      pair.key_bias = has_key_bias ? pattern->key_bias[slot] : 0.0f;
      pair.terms = terms;
      pair.at = RowOfTile(r) * 64 + n * 8 + lane_ % 4 * 2 + (i & 1);
      float product = scores_[e * kAttendThreads];
      if (is_careful_ && product != product) product = PlainProduct(p_.q, p_.k, pair);
      if constexpr (Shape::kMayBeRelative) {
        if (p_.r.data != nullptr) product += RelativeProduct(window, pair, r);
      }
      bool sees = true;
      float through_cap;
      float s = ScoreOf(p_, c_.head.b, c_.head.h, scale_ * product, pair, &sees, &through_cap);
      if (!p_.is_softmax()) {
        s = sees ? WeightOf(p_.weighting, s).phi : 0.0f;
        seen[0] += sees && r == 0 ? 1.0f : 0.0f;
        seen[1] += sees && r == 1 ? 1.0f : 0.0f;
      }
      if (!sees) hidden_ |= uint32_t{1} << e;
      scores_[e * kAttendThreads] = s;
    }
    if (!p_.is_softmax()) {
      sum_[0] += seen[0];
      sum_[1] += seen[1];
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s_[n][i] = scores_[(n * 4 + i) * kAttendThreads];
    }
  }

  SIMT_FN float RelativeProduct(const RelativeWindow& window, const PairTerms& pair, int r) const {
    const int64_t delta = pair.position.DeltaTo(pair.key_row, p_.L);
    float product = 0;
    if (window.is_shared) {
      product = relative_[RowOfTile(r) * kRelativeStride + delta - window.first];
      if (!is_careful_ || product == product) return product;
    }
    return Dot(HeadRows::Of(p_.q_rel, c_.head.b, c_.head.h), pair.query_row,
               HeadRows::Of(p_.r, c_.head.b, c_.head.h), delta);
  }

  SIMT_FN float Dot(const HeadRows& x, int64_t x_row, const HeadRows& y, int64_t y_row) const {
    float sum = 0;
    for (int d = 0; d < p_.D; ++d) {
      sum = fmaf(LoadFloat(x.data, x.dtype, x.At(x_row) + d),
                 LoadFloat(y.data, y.dtype, y.At(y_row) + d), sum);
    }
    return sum;
  }
  // The product of a pair as float32 has it: split, infinities give NaN.
  SIMT_FN float PlainProduct(const Plane& q, const Plane& k, const PairTerms& pair) const {
    const bool is_own = pair.key_row < p_.Nk;
    return Dot(HeadRows::Of(q, c_.head.b, c_.head.h), pair.query_row,
               HeadRows::Of(is_own ? k : p_.k2, c_.head.b, c_.head.kv),
               is_own ? pair.key_row : pair.key_row - p_.Nk);
  }
  SIMT_FN void MendScores() {
#pragma unroll 1
    for (int e = 0; e < 32; ++e) {
      float s = Pick(e);
      if (s == s || (hidden_ >> e & 1) != 0) continue;
      PairTerms pair = {};
      pair.query_row = QueryRow(RowOfTile(e >> 1 & 1));
      pair.key_row = KeyRowOf(e / 4, e % 4);
      s = PlainProduct(p_.q, p_.k, pair) * scale_;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (e == n * 4 + i) s_[n][i] = s;
        }
      }
    }
  }
  // s_[e / 4][e % 4]; registers have no index.
  SIMT_FN float Pick(int e) const {
    float s = 0;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (e == n * 4 + i) s = s_[n][i];
      }
    }
    return s;
  }

  SIMT_FN bool HasOdd() const {
    float odd = 0;  // NaN where a number is not finite
#pragma unroll
    for (int m = 0; m < kColumns / 8; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) odd += out_[m][i] * 0.0f;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) odd += sum_[r] * 0.0f;
    return odd != 0.0f || odd != odd;
  }

  // Sets rows of values that are not finite to zero, and notes them.
  SIMT_FN void FindOddRows(T* values) const {
    const int r = threadIdx.x / 2;
    bool is_odd = false;
    for (int c = threadIdx.x % 2; c < value_width_; c += 2) {
      const float x = ToFloat(values[r * Shape::kValueStride + c]) * 0.0f;
      is_odd |= x != 0.0f;
    }
    const unsigned votes = __ballot_sync(simt::kAllLanes, is_odd);
    if ((votes >> (lane_ & ~1) & 3) != 0) {
      for (int c = threadIdx.x % 2; c < value_width_; c += 2) {
        values[r * Shape::kValueStride + c] = FromFloat<T>(0);
      }
    }
    if (lane_ == 0) odd_rows_[warp_] = votes;
    __syncthreads();
  }
  SIMT_FN static float ToFloat(T x) {
    if constexpr (std::is_same_v<T, float>) {
      return x;
    } else if constexpr (std::is_same_v<T, simt::f16>) {
      return __half2float(x);
    } else {
      return __bfloat162float(x);
    }
  }

  // Adds these rows to the rows of queries that see them.
  SIMT_FN void AddOddRows() {
#pragma unroll 1
    for (int key = 0; key < 64; ++key) {
      if ((odd_rows_[key / 16] >> (key % 16 * 2) & 3) == 0) continue;
      const int64_t row = c_.head.KeyRow(key_tile_ * kTile + key);
      const int owner = (lane_ & ~3) + key % 8 / 2;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int e = key / 8 * 4 + r * 2 + key % 2;
        const float weight = __shfl_sync(simt::kAllLanes, Pick(e), owner);
        const bool hides = __shfl_sync(simt::kAllLanes, hidden_ >> e & 1, owner) != 0;
        if (hides || row < 0) continue;
        const bool is_own = row < p_.Nk;
        const HeadRows values =
            HeadRows::Of(is_own ? p_.v : p_.v2, c_.head.b, c_.head.kv);
        const int64_t at = values.At(is_own ? row : row - p_.Nk) + value_column_;
#pragma unroll
        for (int m = 0; m < kColumns / 8; ++m) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int c = m * 8 + lane_ % 4 * 2 + i;
            if (c >= value_width_) continue;
            out_[m][r * 2 + i] =
                fmaf(weight, LoadFloat(values.data, values.dtype, at + c), out_[m][r * 2 + i]);
          }
        }
      }
    }
  }

  SIMT_FN void Store() {
    const float own_sink = p_.is_softmax() ? SinkOf(p_, c_.head.b, c_.head.h) : -INFINITY;
    const int64_t slots = c_.head.query_rows != nullptr ? c_.head.queries : p_.Nq;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = QuadSum(sum_[r]);
      const int64_t slot = first_slot_ + RowOfTile(r);
      // Rows of natural order from nq on exist, too.
      const int64_t row = c_.head.query_rows == nullptr ? slot : QueryRow(RowOfTile(r));
      if (slot >= slots || row < 0) continue;
      const bool is_valid = row < c_.head.nq;
      StoreRow(row, r, is_valid ? FactorOf(p_, c_.head, sum, row) : 0.0f, is_valid && sum != 0);
      if (p_.is_softmax() && lane_ % 4 == 0 && c_.place.value_part == 0) {
        const int64_t at = p_.lse.Head(c_.head.b, c_.head.h) + row * p_.lse.row;
        static_cast<float*>(p_.lse.data)[at] =
            is_valid ? LseOf(max_[r], sum, own_sink) : -INFINITY;
      }
    }
  }
  SIMT_FN void StoreRow(int64_t row, int r, float factor, bool sees) const {
    const int64_t at = p_.out.Head(c_.head.b, c_.head.h) + row * p_.out.row + value_column_;
#pragma unroll
    for (int m = 0; m < kColumns / 8; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int c = m * 8 + lane_ % 4 * 2 + i;
        if (c >= value_width_) continue;
        StoreFloat(p_.out.data, p_.out.dtype, at + c, sees ? out_[m][r * 2 + i] * factor : 0.0f);
      }
    }
  }

  // The state of a part.
  SIMT_FN void Save() const {
    float* state = c_.tile.State(data_, c_.place);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = QuadSum(sum_[r]);
      const int i = RowOfTile(r);
      if (i >= data_.state_rows) continue;
      if (lane_ % 4 == 0 && c_.place.value_part == 0) {
        state[i] = max_[r];
        state[data_.state_rows + i] = sum;
      }
      float* values = state + 2 * data_.state_rows + int64_t{i} * p_.Dv + value_column_;
#pragma unroll
      for (int m = 0; m < kColumns / 8; ++m) {
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          const int c = m * 8 + lane_ % 4 * 2 + x;
          if (c < value_width_) values[c] = out_[m][r * 2 + x];
        }
      }
    }
  }

  const ForwardData& data_;
  const AttendData& p_;
  const ForwardConstants& c_;
  T* query_tile_ = nullptr;
  T *even_, *odd_;  // buffers of pieces in turn
  uint32_t* odd_rows_;        // two bits a key of the tile
  float* scores_ = nullptr;   // of this thread, every kAttendThreads-th
  float* relative_ = nullptr;  // [64][kRelativeStride]
  const int lane_, warp_;
  const int64_t first_slot_;
  int value_column_, value_width_;
  bool warp_sees_, is_careful_ = false;
  float scale_;
  RowRange queries_;

  int64_t key_tile_ = 0;
  int mask_ = TileRun::kFull, terms_ = TileRun::kNoTerms;
  uint32_t hidden_ = 0;
  float s_[8][4];            // products, scores, weights
  float by_distance_[8][4];  // products of the relative term
  float out_[kColumns / 8][4];
  // Of two rows; the sum over this lane's keys. Without softmax 0, and the pairs seen.
  float max_[2], sum_[2];
};

// Rows of q that stand in no slot.
SIMT_FN void StoreUnplaced(const AttendData& p, const AttendHead& head, const ForwardPlace& place) {
  if (head.query_rows == nullptr || place.part != 0 || place.value_part != 0) return;
  const int64_t slot_tiles = (head.queries + kTile - 1) / kTile;
  if (place.rank < slot_tiles) return;
  const float sink = p.is_softmax() ? SinkOf(p, head.b, head.h) : -INFINITY;
  for (int i = threadIdx.x / 32; i < kTile; i += kAttendThreads / 32) {
    const int64_t row = (place.rank - slot_tiles) * kTile + i;
    if (row >= p.Nq) return;
    const PatternData& pattern = *head.pattern;
    if (row < pattern.placed_rows && pattern.slot_of_query[row] >= 0) continue;
    const int64_t at = p.out.Head(head.b, head.h) + row * p.out.row;
    for (int c = threadIdx.x % 32; c < p.Dv; c += 32) {
      StoreFloat(p.out.data, p.out.dtype, at + c, 0.0f);
    }
    if (p.is_softmax() && threadIdx.x % 32 == 0) {
      static_cast<float*>(p.lse.data)[p.lse.Head(head.b, head.h) + row * p.lse.row] =
          row < head.nq ? sink : -INFINITY;
    }
  }
}

template <class T, int kWidth, bool kStreams, bool kTerms>
__global__ void __launch_bounds__(kAttendThreads, 2)
    AttendForward(const __grid_constant__ Problems<ForwardData> problems) {
  const auto found = FindPlace(problems);
  const ForwardData& data = found.problem;
  simt::SharedTiles shared;
  ForwardConstants* constants = shared.Take<ForwardConstants>(1);
  if (threadIdx.x == 0) constants->Set<T>(data, found.block);
  __syncthreads();
  if (constants->tile.index < 0) {
    StoreUnplaced(data.p, constants->head, constants->place);
    return;
  }
  ForwardBlock<T, kWidth, kStreams, kTerms>(data, *constants, shared).Run();
}

template <class T, int kWidth, bool kStreams>
ForwardForm FormOf(bool has_terms, bool has_relative) {
  if (has_terms) {
    return {AttendForward<T, kWidth, kStreams, true>,
            ForwardShape<T, kWidth, kStreams, true>::SharedBytes(has_relative)};
  }
  // Streamed problems are few: one kernel serves them.
  constexpr bool kTerms = kStreams;
  return {AttendForward<T, kWidth, kStreams, kTerms>,
          ForwardShape<T, kWidth, kStreams, kTerms>::SharedBytes(false)};
}

template <class T>
ForwardForm FormOf(int width, bool has_terms, bool has_relative) {
  if (width == 64) return FormOf<T, 64, false>(has_terms, false);
  if (width == 128) return FormOf<T, 128, false>(has_terms, false);
  return FormOf<T, 64, true>(has_terms, has_relative);
}

}  // namespace attnd::cuda
