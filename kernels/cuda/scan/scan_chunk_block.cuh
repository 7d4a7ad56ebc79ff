// What the kernels of chunks (scan_chunks.cuh) share: where a block is, its tiles of keys and
// values, and how the state takes them in.
#pragma once

#include "kernels/cuda/scan/scan_chunk_products.h"
#include "kernels/cuda/scan/scan_chunk_tiles.cuh"
#include "kernels/cuda/scan/scan_passes.h"

namespace attnd::cuda {

// The rows of a chunk: features of keys times beta, values, features of queries, and gradients of
// queries' sums over values, to_num dout.
enum ChunkRole : int { kKeyRows, kValueRows, kQueryRows, kGradientRows };

// What the threads of a block agree on, in shared memory.
struct ChunkSegment {
  WalkPlace at;
  ScanLine line;
  ChunkTensor tensors[4];  // of each role
  ChunkTensor to;          // what the block writes
  // Of the segment's first position; null: there are none. Those of queries: Nq to the next head.
  const float *k_shift, *q_shift, *beta, *to_num, *to_d;
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
  static constexpr size_t kKeysBytes =
      simt::SharedBytes<ChunkSegment>(1) + 2 * kTileBytes + simt::SharedBytes<float>(kWidth) +
      simt::SharedBytes<int>(kWidth) + ChunkDecays::kBytes + simt::SharedBytes<float>(kChunk);
  static constexpr size_t kRowsBytes = kKeysBytes + kTileBytes +
                                       simt::SharedBytes<float>(kWidth * kStateStride) +
                                       simt::SharedBytes<float>(kWarps * 16);
};

static_assert(ChunkShape<kChunkMostWidth>::kRowsBytes <= kWideChunkBytes);

template <int kWidth>
struct ChunkBlock {
  using Shape = ChunkShape<kWidth>;
  static constexpr int kStride = Shape::kStride, kStateStride = Shape::kStateStride;

  const ScanWork& w;
  const int warp, lane, group, t;  // of fragments: lane / 4, lane % 4
  const int padded;                // the state's rows, to whole steps
  ChunkSegment* const segment;
  const WalkPlace& at;
  const ScanLine& line;
  float *k, *v, *z;  // what advances the state: rows of it, and of its columns
  int* bad;          // [kWidth]: see SetBadAside
  float* to_d;       // [kChunk]
  ChunkDecays decays;
  bool is_bad = false;

  // `rows`: of the state.
  SIMT_FN ChunkBlock(const ScanWork& work, int64_t block, int rows, simt::SharedTiles* tiles)
      : w(work),
        warp(static_cast<int>(threadIdx.x) / simt::kWarp),
        lane(static_cast<int>(threadIdx.x) % simt::kWarp),
        group(lane / 4),
        t(lane % 4),
        padded((rows + 15) / 16 * 16),
        segment(tiles->Take<ChunkSegment>(1)),
        at(segment->at),
        line(segment->line),
        k(tiles->Take<float>(kChunk * kStride)),
        v(tiles->Take<float>(kChunk * kStride)),
        z(tiles->Take<float>(kWidth)),
        bad(tiles->Take<int>(kWidth)),
        to_d(tiles->Take<float>(kChunk)),
        decays(ChunkDecays::Take(tiles)) {
    if (threadIdx.x == 0) {
      segment->at = FindWalk(w, block, 1, false);
      segment->line = w.lines[at.b];
    }
    __syncthreads();
    SetSegment();
    if (!w.key_decays) decays.Fill(1);
    __syncthreads();
  }

  SIMT_FN int64_t begin() const { return at.segment * kScanSegment; }
  SIMT_FN int positions() const {
    return static_cast<int>(min(line.positions - begin(), int64_t{kScanSegment}));
  }
  // This warp's 16 rows and 64 columns of what is read, and the row of element i of a fragment.
  SIMT_FN int rows16() const { return kWidth > 64 ? warp % 4 : warp; }
  SIMT_FN int first_column() const { return kWidth > 64 ? warp / 4 * 64 : 0; }
  SIMT_FN int RowOf(int i) const { return rows16() * 16 + group + (i >> 1) * 8; }

  // In w.states or w.adjoints.
  SIMT_FN StateRef OfSegment(float* states) const {
    const int64_t slot = w.StateSlot(at.b, line, at.segment) * w.Hkv + at.g;
    return StateRef(w, states + slot * w.state_floats());
  }
  SIMT_FN bool Has(ChunkRole role, int position) const {
    return segment->tensors[role].HasSome(position);
  }
  SIMT_FN void Start(float* tile, ChunkRole role, int position, int member, int columns) const {
    StartChunk<kWidth>(tile, kStride, segment->tensors[role], position, member, columns);
  }
  // Returns whether all elements are finite.
  SIMT_FN bool Finish(float* tile, ChunkRole role, int position, int member, int columns) const {
    const bool is_query = role == kQueryRows, maps = role == kKeyRows || is_query;
    const int64_t ahead = member * w.Nq;
    const float* shift = is_query ? segment->q_shift : segment->k_shift;
    const float* by = role == kKeyRows ? segment->beta : nullptr;
    int64_t by_row = segment->beta_row;
    if (is_query && shift != nullptr) shift += ahead;
    if (role == kGradientRows) by = segment->to_num + ahead, by_row = 1;
    const FeatureMap map = w.map;
    const float offset = w.offset;
    bool finite = true;
    FinishChunk<kWidth>(tile, kStride, segment->tensors[role], position, member, columns,
                        [&](int row, float(&x)[4]) {
                          if (maps) MapFour(map, shift == nullptr ? 0 : shift[row], offset, x);
                          if (by != nullptr) {
                            const float factor = by[row * by_row];
#pragma unroll
                            for (int e = 0; e < 4; ++e) x[e] *= factor;
                          }
#pragma unroll
                          for (int e = 0; e < 4; ++e) finite = finite && fabsf(x[e]) < INFINITY;
                        });
    return finite;
  }
  SIMT_FN void SumDecays(int position) const {
    if (!w.key_decays || warp != 0) return;
    decays.Sum(
        [&](int r) { return LogKeyDecay(w, at.b, at.g, KeyAt(line, begin() + position + r)); });
  }
  SIMT_FN void LoadToD(int position, int member) const {
    const ChunkTensor& queries = segment->tensors[kQueryRows];
    for (int r = threadIdx.x; r < kChunk; r += blockDim.x) {
      const int row = position + r;
      const bool is_there = row >= queries.begin && row < queries.end;
      to_d[r] = is_there ? segment->to_d[member * w.Nq + row] : 0.0f;
    }
  }
  // 0 times what is not finite would reach rows that do not see it: such elements of v become
  // zeros, and NaN where they are seen. bad: the first position, or kChunk, where later rows see
  // one; the last one, or -1, where earlier ones do.
  SIMT_FN void SetBadAside(bool later_see) const {
    for (int c = threadIdx.x; c < kWidth; c += blockDim.x) {
      int first = kChunk, last = -1;
      for (int row = 0; row < kChunk; ++row) {
        float* const x = v + row * kStride + c;
        if (fabsf(*x) < INFINITY) continue;
        *x = 0;
        first = min(first, row);
        last = row;
      }
      bad[c] = later_see ? first : last;
    }
    __syncthreads();
  }

  // own = decay own + (weights k)^T v, of 16 rows of the state a warp.
  SIMT_FN void Advance(float (&own)[8][4], int column, float decay, const float* weights) const {
    float sums[2];
    Advance(own, column, decay, weights, nullptr, sums);
  }
  // z likewise, with `ones` (null: 1) in place of v.
  SIMT_FN void AdvanceWithOnes(float (&own)[8][4], int column, float decay, const float* weights,
                               const float* ones) const {
    float sums[2] = {0, 0};
    Advance(own, column, decay, weights, ones, sums);
    const int f = warp * 16 + group;
    if (column != 0 || warp * 16 >= padded) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float sum = SumOfQuad(sums[i]);
      if (t == 0) z[f + i * 8] = decay * z[f + i * 8] + sum;
    }
  }
  // f(element, its place in s) of 64 columns of this warp's features.
  template <class F>
  SIMT_FN void ForEachOfState(float* s, float (&own)[8][4], int column, const F& f) const {
    float* const first = s + (warp * 16 + group) * kStateStride + column + t * 2;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        f(own[n][i], first + (i >> 1) * 8 * kStateStride + n * 8 + (i & 1));
      }
    }
  }
  // What all of a chunk's keys decay by.
  SIMT_FN float Decay() const { return decays.from_start[kChunk - 1]; }

 private:
  // sums: of this lane's rows of k.
  SIMT_FN void Advance(float (&own)[8][4], int column, float decay, const float* weights,
                       const float* ones, float (&sums)[2]) const {
    const int f = warp * 16 + group;
    if (warp * 16 >= padded) return;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) own[n][i] *= decay;
    }
    sums[0] = sums[1] = 0;
#pragma unroll 1
    for (int j = 0; j < kChunk; j += 8) {
      // Columns t and t + 4 of the left side are rows 2 t and 2 t + 1 of k.
      const int row = j + t * 2;
      SplitRows a;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = row + (i >> 1);
        const float x = k[r * kStride + f + (i & 1) * 8] * weights[r];
        sums[i & 1] += ones == nullptr ? x : x * ones[r];
        a.Set(i, x);
      }
      const float* const b = v + row * kStride + column + group;
      AddEight(own, a, [&](int n, int i) { return b[i * kStride + n * 8]; });
    }
    if (is_bad) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at_bad = bad[column + n * 8 + t * 2 + (i & 1)];
          if (static_cast<unsigned>(at_bad) < kChunk) own[n][i] = NAN;
        }
      }
    }
  }

  // A tensor a warp: they take a while.
  SIMT_FN void SetSegment() const {
    if (lane != 0 || warp > 3) return;
    const int64_t key = begin() - line.lead, query = begin() - line.ahead;
    const int64_t h = at.g * w.group();
    ChunkTensor& tensor = segment->tensors[warp];
    if (warp == kKeyRows) tensor.Set(w.k, at.b, at.g, key, 0, line.used_keys, w.D);
    if (warp == kValueRows) tensor.Set(w.v, at.b, at.g, key, 0, line.used_keys, w.Dv);
    if (warp == kQueryRows) tensor.Set(w.q, at.b, h, query, line.first_query, line.end_query, w.D);
    if (warp != kGradientRows) return;
    // One that is not given is as wide as nothing: zeros, of which rows get no less than of others.
    const int columns = w.dout.given ? w.Dv : 0;
    tensor.Set(w.dout, at.b, h, query, line.first_query, line.end_query, columns);
    const int64_t row = w.Row(at.b, h, query);
    const auto from = [](const float* x, int64_t first) { return x == nullptr ? x : x + first; };
    segment->k_shift = from(w.k_shift, w.Key(at.b, at.g, key));
    segment->q_shift = from(w.q_shift, row);
    segment->to_num = from(w.to_num, row);
    segment->to_d = from(w.to_d, row);
    segment->beta = from(w.beta.given ? static_cast<const float*>(w.beta.data) : nullptr,
                         at.b * w.beta.b + at.g * w.beta.h + key * w.beta.n);
    segment->beta_row = w.beta.n;
  }
};

}  // namespace attnd::cuda
