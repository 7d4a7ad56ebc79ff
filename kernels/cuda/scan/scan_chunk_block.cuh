// What the kernels of chunks (scan_chunks.cuh) share: where a block is, its tiles of keys and
// values, and how the state takes them in.
#pragma once

#include "kernels/cuda/scan/scan_chunk_products.h"
#include "kernels/cuda/scan/scan_chunk_tiles.cuh"
#include "kernels/cuda/scan/scan_passes.h"

namespace attnd::cuda {

// What the threads of a block agree on, in shared memory.
struct ChunkSegment {
  WalkPlace at;
  ScanLine line;
  ChunkTensor k, v, q, out;
  // Of the segment's first position; null: there are none.
  const float *k_shift, *q_shift, *beta;
  int64_t beta_row;
};

// A warp owns 16 rows of the left side of a product and 64 columns: of queries 16 of a chunk and a
// half of the values, of the state 16 features.
template <int kWidth>
struct ChunkShape {
  static constexpr int kThreads = 2 * kWidth, kWarps = kThreads / simt::kWarp;
  static constexpr int kHalves = kWidth / 64;
  // Fragments of rows and of columns lie in different banks.
  static constexpr int kStride = kWidth + 4, kStateStride = kWidth + 8;

  static constexpr size_t kTileBytes = simt::SharedBytes<float>(kChunk * kStride);
  static constexpr size_t kKeysBytes = simt::SharedBytes<ChunkSegment>(1) + 2 * kTileBytes +
                                       simt::SharedBytes<float>(kWidth) +
                                       simt::SharedBytes<int>(kWidth) + ChunkDecays::kBytes;
  static constexpr size_t kRowsBytes = kKeysBytes + kTileBytes +
                                       simt::SharedBytes<float>(kWidth * kStateStride) +
                                       simt::SharedBytes<float>(kWarps * 16);
};

template <int kWidth>
struct ChunkBlock {
  using Shape = ChunkShape<kWidth>;
  static constexpr int kStride = Shape::kStride, kStateStride = Shape::kStateStride;

  const ScanWork& w;
  const int warp, lane, group, t;  // of fragments: lane / 4, lane % 4
  const int padded;                // features, to whole steps
  ChunkSegment* const segment;
  const WalkPlace& at;
  const ScanLine& line;
  float *k, *v, *z;
  int* first_bad;  // [kWidth]: the first position whose value is not finite
  ChunkDecays decays;
  bool has_keys = false, is_bad = false;  // of the chunk

  SIMT_FN ChunkBlock(const ScanWork& work, int64_t block, simt::SharedTiles* tiles)
      : w(work),
        warp(static_cast<int>(threadIdx.x) / simt::kWarp),
        lane(static_cast<int>(threadIdx.x) % simt::kWarp),
        group(lane / 4),
        t(lane % 4),
        padded((work.D + 15) / 16 * 16),
        segment(tiles->Take<ChunkSegment>(1)),
        at(segment->at),
        line(segment->line),
        k(tiles->Take<float>(kChunk * kStride)),
        v(tiles->Take<float>(kChunk * kStride)),
        z(tiles->Take<float>(kWidth)),
        first_bad(tiles->Take<int>(kWidth)),
        decays(ChunkDecays::Take(tiles)) {
    if (threadIdx.x == 0) {
      segment->at = FindWalk(w, block, 1, false);
      segment->line = w.lines[at.b];
    }
    __syncthreads();
    SetSegment();
  }

  SIMT_FN int64_t begin() const { return at.segment * kScanSegment; }
  SIMT_FN int positions() const {
    return static_cast<int>(min(line.positions - begin(), int64_t{kScanSegment}));
  }
  // In w.states.
  SIMT_FN StateRef OfSegment() const {
    const int64_t slot = w.StateSlot(at.b, line, at.segment) * w.Hkv + at.g;
    return StateRef(w, w.states + slot * w.state_floats());
  }
  SIMT_FN void StartKeys(int position) {
    has_keys = segment->k.HasSome(position);
    if (!has_keys) return;
    StartChunk<kWidth>(k, kStride, segment->k, position, 0, padded);
    StartChunk<kWidth>(v, kStride, segment->v, position, 0, kWidth);
  }
  // Returns whether all values are finite.
  SIMT_FN bool FinishKeys(int position) {
    if (!has_keys) return true;
    const FeatureMap map = w.map;
    const float offset = w.offset;
    const float *const shift = segment->k_shift, *const beta = segment->beta;
    FinishChunk<kWidth>(k, kStride, segment->k, position, 0, padded, [&](int key, float(&x)[4]) {
      MapFour(map, shift == nullptr ? 0 : shift[key], offset, x);
      if (beta == nullptr) return;
      const float factor = beta[key * segment->beta_row];
#pragma unroll
      for (int e = 0; e < 4; ++e) x[e] *= factor;
    });
    bool finite = true;
    FinishChunk<kWidth>(v, kStride, segment->v, position, 0, kWidth, [&](int, float(&x)[4]) {
#pragma unroll
      for (int e = 0; e < 4; ++e) finite = finite && fabsf(x[e]) < INFINITY;
    });
    if (w.key_decays && warp == 0) {
      decays.Sum(
          [&](int r) { return LogKeyDecay(w, at.b, at.g, KeyAt(line, begin() + position + r)); });
    }
    return finite;
  }
  // 0 times what is not finite would reach queries that do not see it: such values become zeros,
  // and NaN where they are seen.
  SIMT_FN void SetBadAside() {
    for (int c = threadIdx.x; c < kWidth; c += blockDim.x) {
      int bad = kChunk;
      for (int row = kChunk - 1; row >= 0; --row) {
        float* const x = v + row * kStride + c;
        if (fabsf(*x) < INFINITY) continue;
        *x = 0;
        bad = row;
      }
      first_bad[c] = bad;
    }
    __syncthreads();
  }

  // own += k^T v of the warp's features, and z; both decay first.
  SIMT_FN void Advance(float (&own)[8][4], int column) {
    const int f = warp * 16 + group;
    if (warp * 16 >= padded) return;
    const float decay = w.key_decays ? decays.from_start[kChunk - 1] : 1.0f;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) own[n][i] *= decay;
    }
    float sums[2] = {0, 0};
#pragma unroll 1
    for (int j = 0; j < kChunk; j += 8) {
      // Columns t and t + 4 of the left side are keys 2 t and 2 t + 1.
      const int key = j + t * 2;
      const float factor[2] = {decays.to_end[key], decays.to_end[key + 1]};
      SplitRows a;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float x = k[(key + (i >> 1)) * kStride + f + (i & 1) * 8] * factor[i >> 1];
        sums[i & 1] += x;
        a.Set(i, x);
      }
      const float* const row = v + key * kStride + column + group;
      AddEight(own, a, [&](int n, int i) { return row[i * kStride + n * 8]; });
    }
    if (is_bad) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (first_bad[column + n * 8 + t * 2 + (i & 1)] < kChunk) own[n][i] = NAN;
        }
      }
    }
    if (column != 0) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float sum = SumOfQuad(sums[i]);
      if (t == 0) z[f + i * 8] = decay * z[f + i * 8] + sum;
    }
  }

 private:
  // A tensor a warp: they take a while.
  SIMT_FN void SetSegment() {
    if (lane != 0) return;
    const int64_t key = begin() - line.lead, query = begin() - line.ahead;
    const int64_t h = at.g * w.group();
    if (warp == 0) segment->k.Set(w.k, at.b, at.g, key, 0, line.used_keys, w.D);
    if (warp == 1) segment->v.Set(w.v, at.b, at.g, key, 0, line.used_keys, w.Dv);
    if (warp == 2) segment->q.Set(w.q, at.b, h, query, line.first_query, line.end_query, w.D);
    if (warp != 3) return;
    if (w.out.given) {
      segment->out.Set(w.out, at.b, h, query, line.first_query, line.end_query, w.Dv);
    }
    segment->k_shift = w.k_shift == nullptr ? nullptr : w.k_shift + w.Key(at.b, at.g, key);
    segment->q_shift = w.q_shift == nullptr ? nullptr : w.q_shift + w.Row(at.b, h, query);
    segment->beta = nullptr;
    segment->beta_row = w.beta.n;
    if (!w.beta.given) return;
    segment->beta =
        static_cast<const float*>(w.beta.data) + at.b * w.beta.b + at.g * w.beta.h + key * w.beta.n;
  }
};

}  // namespace attnd::cuda
