// A block of the forward kernel of attend: its state, and how it walks over tiles of keys.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attend/attend_forward.h"
#include "kernels/cuda/attend/attend_params.h"
#include "kernels/cuda/attend/attend_relative.cuh"
#include "kernels/cuda/attend/attend_terms.h"
#include "kernels/cuda/attend/attend_tiles.h"
#include "kernels/cuda/attend/forward_shape.cuh"
#include "kernels/cuda/simt.h"

namespace attnd::cuda {

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
        first_slot_(static_cast<int>(constants.tile.index) * 64) {
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
      if (p_.r.data != nullptr) relative_ = shared.Take<float>(64 * kRelativeStride);
    }
  }

  // Numbers that are not finite are rare: what hides them, so that they reach only rows that see
  // them, costs time and comes second.
  SIMT_FN void Run() {
    if constexpr (!kStreams) {
      LoadTile<T, kWidth>(query_tile_, Shape::kStride, c_.q, 0, c_.head.QueryRows(first_slot_));
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
  SIMT_FN int RowOfTile(int r) const { return warp_ * 16 + lane_ / 4 + r * 8; }
  SIMT_FN int64_t QueryRow(int64_t i) const { return c_.head.QueryRow(first_slot_ + i); }
  SIMT_FN int Chunks() const { return kStreams ? (p_.D + kWidth - 1) / kWidth : 1; }
  // Pieces of a key tile: chunks of two halves of the distances, chunks of keys, values.
  SIMT_FN int Pieces(const RelativeWindow& window) const {
    if constexpr (Shape::kMayBeRelative) {
      if (window.is_shared) return 3 * Chunks() + 1;
    }
    return Chunks() + 1;
  }
  // 0 and 1: halves of the distances.
  static constexpr int kKeys = 2;
  SIMT_FN int PartOf(int piece, const RelativeWindow& window) const {
    if (!kStreams) return kKeys;
    return piece / Chunks() + (window.is_shared ? 0 : kKeys);
  }
  SIMT_FN RelativeWindow WindowOf(int64_t tile) const {
    if constexpr (Shape::kMayBeRelative) {
      if (p_.r.data != nullptr) {
        const RowRange keys = RangeOfRows(c_.head.KeyRows(tile * kTile));
        const RowRange queries = RangeOfRows(c_.head.QueryRows(first_slot_));
        return RelativeWindow::Of(queries, keys, c_.head.offset, p_.L);
      }
    }
    return {false, 0};
  }

  SIMT_FN T* Buffer(int parity) const { return parity == 0 ? even_ : odd_; }
  // Starts to load a piece of a key tile.
  SIMT_FN void Load(int piece, const RelativeWindow& window, int64_t key_tile, T* buffer) const {
    const TileRows keys = c_.head.KeyRows(key_tile * kTile);
    if (piece == Pieces(window) - 1) {
      LoadTile<T, kColumns>(buffer, Shape::kValueStride, c_.v, value_column_, keys);
      return;
    }
    if constexpr (!kStreams) {
      LoadTile<T, kWidth>(buffer, Shape::kStride, c_.k, 0, keys);
    } else {
      const int part = PartOf(piece, window), column = piece % Chunks() * kWidth;
      const TileRows queries = c_.head.QueryRows(first_slot_);
      T* right = buffer + 64 * Shape::kStride;
      if (part == kKeys) {
        LoadTile<T, kWidth>(buffer, Shape::kStride, c_.q, column, queries);
        LoadTile<T, kWidth>(right, Shape::kStride, c_.k, column, keys);
      } else if constexpr (Shape::kMayBeRelative) {
        LoadTile<T, kWidth>(buffer, Shape::kStride, c_.q_rel, column, queries);
        const int64_t delta = window.first + part * 64;
        LoadTile<T, kWidth>(right, Shape::kStride, c_.r, column, {nullptr, delta, p_.L - delta});
      }
    }
  }

  SIMT_FN void Walk() {
    Clear();
    const PatternData* pattern = c_.head.pattern;
    TileWalk walk(pattern == nullptr ? nullptr : &pattern->by_query, c_.tile.index,
                  first_slot_ < c_.head.queries ? (c_.head.keys + kTile - 1) / kTile : 0,
                  c_.tile.skip, c_.tile.count);
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
          if (warp_sees_) Multiply(piece, own, buffer);
          if (piece + 2 == pieces && warp_sees_) Weigh(own);
          continue;
        }
        if (is_careful_) FindOddRows(buffer);
        if (warp_sees_) {
          if (std::is_same_v<T, float> || data_.is_exact) {
            AddValues<true, false>(buffer);
          } else if constexpr (!std::is_same_v<T, float>) {
            if (value_width_ == kColumns) {
              AddValues<false, true>(buffer);
            } else {
              AddValues<false, false>(buffer);
            }
          }
          if (is_careful_) AddOddRows();
        }
      }
    }
    // Before the buffers are used again.
    __syncthreads();
  }

  template <bool kExact, bool kWhole>
  SIMT_FN void AddValues(const T* values) {
    AddWeighted<T, kColumns, kExact, kWhole>(out_, s_, values, Shape::kValueStride, value_width_);
  }

  SIMT_FN void Clear() {
#pragma unroll
    for (int m = 0; m < kColumns / 8; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out_[m][i] = 0;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      max_[r] = p_.is_softmax() ? -INFINITY : 0.0f;
      sum_[r] = 0;
    }
  }

  // Products of the pieces so far.
  SIMT_FN void Multiply(int piece, const RelativeWindow& window, const T* buffer) {
    constexpr int kStep = kProductStep<T>;
    const int chunks = Chunks(), chunk = kStreams ? piece % chunks : 0;
    const int width = (min(p_.D - chunk * kWidth, kWidth) + kStep - 1) / kStep * kStep;
    const T* left = kStreams ? buffer : query_tile_;
    const T* right = kStreams ? buffer + 64 * Shape::kStride : buffer;
    if (chunk == 0) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s_[n][i] = 0;
      }
    }
    left += warp_ * 16 * Shape::kStride;
    if (width == kWidth) {
      AddProducts<T, kWidth, true>(s_, left, right, Shape::kStride, width);
    } else {
      AddProducts<T, kWidth, false>(s_, left, right, Shape::kStride, width);
    }
    if constexpr (Shape::kMayBeRelative) {
      const int part = PartOf(piece, window);
      if (part == kKeys || chunk != chunks - 1) return;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          relative_[RowOfTile(i >> 1) * kRelativeStride + part * 64 + n * 8 + lane_ % 4 * 2 +
                    (i & 1)] = s_[n][i];
        }
      }
    }
  }

  // Bits [n * 4 + i]: the pair is hidden.
  SIMT_FN uint32_t HiddenByMask() const;
  SIMT_FN static uint64_t LowBitsOf(int64_t n) {
    return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1;
  }

  SIMT_FN int64_t KeyRowOf(int n, int i) const {
    return c_.head.KeyRow(key_tile_ * kTile + n * 8 + lane_ % 4 * 2 + (i & 1));
  }

  // Turns products into weights, and rescales the sums.
  SIMT_FN void Weigh(const RelativeWindow& window);

  // Products become scores, or weights where no softmax follows. In shared memory, where a loop
  // may run over them.
  SIMT_FN void AddTerms(const RelativeWindow& window);

  SIMT_FN float RelativeProduct(const RelativeWindow& window, const PairTerms& pair, int r) const;

  SIMT_FN float Dot(const HeadRows& x, int64_t x_row, const HeadRows& y, int64_t y_row) const;
  // The product of a pair as float32 has it: split, infinities give NaN.
  SIMT_FN float PlainProduct(const Plane& q, const Plane& k, const PairTerms& pair) const;
  SIMT_FN void MendScores();
  // s_[e / 4][e % 4]; registers have no index.
  SIMT_FN float Pick(int e) const;

  SIMT_FN bool HasOdd() const;

  // Sets values that are not finite to zero, and notes their rows.
  SIMT_FN void FindOddRows(T* values) const;
  SIMT_FN static float ToFloat(T x) {
    if constexpr (std::is_same_v<T, float>) {
      return x;
    } else if constexpr (std::is_same_v<T, simt::f16>) {
      return __half2float(x);
    } else {
      return __bfloat162float(x);
    }
  }

  // Adds such values to the rows of queries that see them. All others keep their bits.
  SIMT_FN void AddOddRows();

  SIMT_FN void Store();
  SIMT_FN void StoreRow(int64_t row, int r, float factor, bool sees) const;

  // The state of a part.
  SIMT_FN void Save() const;

  const ForwardData& data_;
  const AttendData& p_;
  const ForwardConstants& c_;
  T* query_tile_ = nullptr;
  T *even_, *odd_;             // buffers of pieces in turn
  uint32_t* odd_rows_;         // two bits a key of the tile
  float* scores_ = nullptr;    // of this thread, every kAttendThreads-th
  float* relative_ = nullptr;  // [64][kRelativeStride]
  const int lane_, warp_;
  const int first_slot_;
  int value_column_, value_width_;
  bool warp_sees_, is_careful_ = false;
  float scale_;

  int64_t key_tile_ = 0;
  int mask_ = TileRun::kFull, terms_ = TileRun::kNoTerms;
  uint32_t hidden_ = 0;
  float s_[8][4];  // products, scores, weights
  float out_[kColumns / 8][4];
  // Of two rows; the sum over this lane's keys. Without softmax 0, and the pairs seen.
  float max_[2], sum_[2];
};

}  // namespace attnd::cuda
