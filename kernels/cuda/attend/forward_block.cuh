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
#include "kernels/cuda/attend/forward_sums.cuh"
#include "kernels/cuda/attend/narrow_product.h"
#include "kernels/cuda/simt.h"

namespace attnd::cuda {

template <class T, int kWidth, bool kStreams, bool kTerms>
class ForwardBlock : ForwardSums<ForwardShape<T, kWidth, kStreams, kTerms>::kValueWidth, 1> {
  using Shape = ForwardShape<T, kWidth, kStreams, kTerms>;
  static constexpr int kColumns = Shape::kValueWidth;
  using Sums = ForwardSums<kColumns, 1>;
  using Sums::kRows, Sums::Score, Sums::Out, Sums::s_, Sums::out_, Sums::max_, Sums::sum_;

 public:
  // REQUIRES: `constants` are set. Takes what SharedBytesOfBlock counts beyond the tiles.
  SIMT_FN ForwardBlock(const ForwardData& data, ForwardConstants& constants,
                       const ForwardTiles<T>& tiles, simt::SharedTiles& shared)
      : data_(data),
        p_(data.p),
        c_(constants),
        tiles_(tiles),
        lane_(threadIdx.x % 32),
        warp_row_(threadIdx.x / 32 * 16),
        first_slot_(static_cast<int>(c_.tile.index) * 64) {
    if constexpr (kTerms) scores_ = shared.Take<float>(32 * kAttendThreads) + threadIdx.x;
    warp_exists_ = first_slot_ + warp_row_ < c_.head.queries;
    scale_ = p_.scale;
    if constexpr (Shape::kMayBeRelative) {
      if (p_.r.data != nullptr) relative_ = shared.Take<float>(64 * kRelativeStride);
    }
  }

  // Numbers that are not finite are rare: what hides them, so that they reach only rows that see
  // them, costs time and comes second.
  SIMT_FN void Run() {
    if constexpr (!kStreams) {
      LoadTile<T, kWidth>(tiles_.query, Shape::kStride, c_.q, 0, c_.head.QueryRows(first_slot_));
    }
    for (int careful = 0; careful < 2; ++careful) {
      is_careful_ = careful != 0;
      Walk();
      if (!__syncthreads_or(this->HasOdd())) break;
    }
    if (c_.tile.is_whole) {
      this->StoreRows(p_, c_.head, first_slot_ + warp_row_, ValueColumn(), ValueWidth());
    } else {
      Save();
    }
  }

 private:
  // The block's values.
  SIMT_FN int ValueColumn() const { return kStreams ? c_.place.value_part * kColumns : 0; }
  SIMT_FN int ValueWidth() const { return min(p_.Dv - ValueColumn(), kColumns); }
  // Of row r of this lane.
  SIMT_FN int RowOfTile(int r) const { return warp_row_ + lane_ / 4 + r * 8; }
  SIMT_FN int64_t QueryRow(int64_t i) const { return c_.head.QueryRow(first_slot_ + i); }
  SIMT_FN const KeyRun<1>& KeysRun() const { return c_.runs.list[run_]; }
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

  SIMT_FN T* Buffer(int parity) const { return parity == 0 ? tiles_.even : tiles_.odd; }
  // Starts to load a piece of a key tile.
  SIMT_FN void Load(int piece, const RelativeWindow& window, int64_t key_tile, T* buffer) const {
    const ChosenRows keys = c_.head.KeyRows(key_tile * kTile);
    if (piece == Pieces(window) - 1) {
      LoadTile<T, kColumns>(buffer, Shape::kValueStride, c_.v, ValueColumn(), keys);
      return;
    }
    if constexpr (!kStreams) {
      LoadTile<T, kWidth>(buffer, Shape::kStride, c_.k, 0, keys);
    } else {
      const int part = PartOf(piece, window), column = piece % Chunks() * kWidth;
      const ChosenRows queries = c_.head.QueryRows(first_slot_);
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
    this->Clear(p_.is_softmax() ? -INFINITY : 0.0f);
    if (threadIdx.x == 0) {
      c_.runs.Start(c_.head, &c_.tile);
      c_.runs.Next(0);
    }
    __syncthreads();
    int parity = 0;
    RelativeWindow window = {false, 0};
    if (!c_.runs.list[0].is_empty()) {
      window = WindowOf(c_.runs.list[0].first);
      Load(0, window, c_.runs.list[0].first, tiles_.even);
    }
    simt::CopyCommit();
    for (run_ = 0; !c_.runs.list[run_].is_empty(); run_ ^= 1) {
      const int first = c_.runs.list[run_].first, end = c_.runs.list[run_].end;
#pragma unroll 1
      for (int tile = first; tile < end; ++tile) {
        key_tile_ = tile;
        const RelativeWindow own = window;
        const int pieces = Pieces(own);
        // Keys alone, then values: the first buffer, then the second one.
#pragma unroll(kStreams ? 1 : 2)
        for (int piece = 0; piece < pieces; ++piece, parity ^= 1) {
          // This piece has arrived, and no thread reads the one before it.
          simt::CopyWait<0>();
          __syncthreads();
          // No thread is in the run before this one, and there is a barrier until the next.
          if (piece == 0 && tile == first && threadIdx.x == 0) c_.runs.Next(run_ ^ 1);
          if (piece + 1 < pieces) {
            Load(piece + 1, own, tile, Buffer(parity ^ 1));
          } else {
            const KeyRun<1>& next = c_.runs.list[run_ ^ 1];
            if (tile + 1 < end || !next.is_empty()) {
              const int next_tile = tile + 1 < end ? tile + 1 : next.first;
              window = WindowOf(next_tile);
              Load(0, window, next_tile, Buffer(parity ^ 1));
            }
          }
          simt::CopyCommit();
          if (!warp_exists_ && !is_careful_) continue;
          T* buffer = Buffer(parity);
          if (piece + 1 < pieces) {
            if (warp_exists_) Multiply(piece, own, buffer);
            if (piece + 2 == pieces && warp_exists_) Weigh(own);
            continue;
          }
          if (is_careful_) FindOddRows(buffer);
          if (!warp_exists_) continue;
          AddValues(buffer);
          if (is_careful_) AddOddRows();
        }
      }
    }
    // Before the buffers are used again; where there was no tile, queries may be under way.
    simt::CopyWait<0>();
    __syncthreads();
  }

  SIMT_FN void AddValues(const T* values) {
    if (std::is_same_v<T, float> || data_.is_exact) {
      AddWeighted<T, kColumns, true, false>(out_, s_, values, Shape::kValueStride, ValueWidth());
    } else if (ValueWidth() == kColumns) {
      AddWeighted<T, kColumns, false, true>(out_, s_, values, Shape::kValueStride, kColumns);
    } else {
      AddWeighted<T, kColumns, false, false>(out_, s_, values, Shape::kValueStride, ValueWidth());
    }
  }

  // Products of the pieces so far.
  SIMT_FN void Multiply(int piece, const RelativeWindow& window, const T* buffer) {
    constexpr int kStep = kProductStep<T>;
    const int chunks = Chunks(), chunk = kStreams ? piece % chunks : 0;
    const int width = (min(p_.D - chunk * kWidth, kWidth) + kStep - 1) / kStep * kStep;
    const T* left = kStreams ? buffer : tiles_.query;
    const T* right = kStreams ? buffer + 64 * Shape::kStride : buffer;
    if (chunk == 0) this->ClearScores();
    left += warp_row_ * Shape::kStride;
    if constexpr (std::is_same_v<T, float>) {
      if (p_.product_type != DType::kF32 && PartOf(piece, window) == kKeys) {
        const int padded = (width + 15) / 16 * 16;
        AddNarrowProducts(p_.product_type, s_[0], left, right, Shape::kStride, padded);
        return;
      }
    }
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
                    (i & 1)] = s_[0][n][i];
        }
      }
    }
  }

  // Sets hidden_.
  SIMT_FN void HideByMask();
  SIMT_FN static uint64_t LowBitsOf(int64_t n) {
    return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1;
  }

  SIMT_FN int64_t KeyRowOf(int n, int i) const {
    return c_.head.KeyRow(int64_t{key_tile_} * kTile + n * 8 + lane_ % 4 * 2 + (i & 1));
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
  // s_[0][e / 4][e % 4]; registers have no index.
  SIMT_FN float Pick(int e) const;

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

  // The state of a part.
  SIMT_FN void Save() const;

  const ForwardData& data_;
  const AttendData& p_;
  ForwardConstants& c_;
  const ForwardTiles<T> tiles_;
  float* scores_ = nullptr;    // of this thread, every kAttendThreads-th
  float* relative_ = nullptr;  // [64][kRelativeStride]
  const int lane_;
  const int warp_row_;    // the warp's first row of the tile
  const int first_slot_;  // of the tile
  bool warp_exists_, is_careful_ = false;
  float scale_;

  int key_tile_ = 0;
  int run_ = 0;          // of runs
  uint32_t hidden_ = 0;  // bits [n * 4 + i] of s_: the pair is hidden
};

}  // namespace attnd::cuda
