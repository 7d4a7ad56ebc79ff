// The gradient of attend by wide tiles: dq, or dk and dv, of 16-bit rows in order whose scores have
// no terms but masks and constants. As GradQueries and GradKeys (attend_grad.cuh), but a block has
// all columns, copies the next tile meanwhile and tests for nothing that its tiles need not. Where
// a number is not finite it leaves the tile to those.
//
// Bound: FLOPs of tensor cores, 3 products of 64 x 64 x D a pair of tiles in the pass by queries, 4
// in that by keys. Warps of 16 rows read 5/8 of an operand of shared memory for a product: 430
// TFLOP/s at most on an H100.
#pragma once

#include <cstdint>

#include "kernels/cuda/attend/attend_grad_data.h"
#include "kernels/cuda/attend/attend_grad_wide_shared.h"
#include "kernels/cuda/attend/attend_grad_wide_tile.h"
#include "kernels/cuda/launch.h"

namespace attnd::cuda::attend_grad {

// Blocks of a processor at least: sums of 64 columns leave registers for one more.
template <int kD>
constexpr int kWideBlocks = kD == 64 ? 3 : 2;

template <class T, GradPass kPass, int kD>
class GradWide {
 public:
  static constexpr bool kKeys = kPass == GradPass::kKeys;
  using Tile = WideTile<T, kD>;

  SIMT_FN explicit GradWide(simt::SharedTiles& shared) : m(shared) {}

  // Of careful_queries or careful_keys; h: of a query, or of a key.
  SIMT_FN static int32_t* FlagOf(const GradData& p, int64_t b, int64_t h, int64_t tile,
                                 int64_t round) {
    const int64_t heads = kKeys ? p.a.H / p.a.group : p.a.H;
    const int64_t tiles = kKeys ? p.key_tiles : p.query_tiles;
    const int64_t at = ((b * heads + h) * tiles + tile) * RoundsOf(kPass, p) + round;
    return (kKeys ? p.careful_keys : p.careful_queries) + at;
  }
  // Whether it is left to this kernel.
  SIMT_FN static bool Computes(const GradData& p, int64_t b, int64_t h, int64_t tile,
                               int64_t round) {
    return !p.searches || *FlagOf(p, b, h, tile, round) == GradData::kLargeLse;
  }

  // What a round has of own tile `tile` of query heads [h, h + heads).
  SIMT_FN void Run(const GradData& p, int64_t b, int64_t h, int64_t heads, int64_t tile,
                   int64_t round) {
    PairRange range = p.RangeOf(RoundsOf(kPass, p), round);
    int64_t first = h;
    if (threadIdx.x < 32 && range.skip > 0) {
      SkipHeads(kPass, p, b, h + heads, tile, &first, &range);
    }
    if (threadIdx.x == 0) {
      m.block->Set(p, kPass, b, h, heads, tile, round);
      m.walk->Start(p, b, first, h + heads, tile, range);
#pragma unroll 1
      for (int n = 0; n < 2; ++n) m.walk->Publish(p, &m.steps[n]);
      // Nothing to add.
      if (m.block->adds && m.steps[0].count == 0) m.block->own_count = 0;
    }
    __syncthreads();
    CopyOwn(p);
    Clear(first_);
    if constexpr (kKeys) Clear(second_);
    if (m.block->own_count > 0) Walk();
    Store();
  }

 private:
  SIMT_FN void Walk() {
    Copy(m.steps[0], 0);
    for (unsigned n = 0;; ++n) {
      simt::CopyWait<0>();
      __syncthreads();
      const WideStep<T>& step = m.steps[n % kWideSteps];
      if (step.count == 0) break;
      Copy(m.steps[(n + 1) % kWideSteps], (n + 1) % 2);
      if (threadIdx.x == 0) m.walk->Publish(*m.block->problem, &m.steps[(n + 2) % kWideSteps]);
      Add(step, n % 2);
    }
  }
  SIMT_FN static void Clear(WideFragment<kD>& sums) {
#pragma unroll
    for (int n = 0; n < kD / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[n][i] = 0;
    }
  }
  SIMT_FN static const T* From(const Plane& plane, int64_t b, int64_t h, int64_t row) {
    return static_cast<const T*>(plane.data) + plane.Head(b, h) + row * plane.row;
  }

  SIMT_FN void CopyOwn(const GradData& p) {
    const WideBlock& of = *m.block;
    const int D = of.D, Dv = of.Dv;
    Tile::ClearBeyond(m.Own(0), D), Tile::ClearBeyond(m.Own(1), Dv);
    for (int n = 0; n < 2; ++n) {
      Tile::ClearBeyond(m.Other(n, 0), D), Tile::ClearBeyond(m.Other(n, 1), Dv);
    }
    const Plane &first = kKeys ? p.a.k : p.a.q, &second = kKeys ? p.a.v : p.dout;
    const int64_t row = of.tile * kSide, h = kKeys ? of.kv : of.h;
    Tile::Copy(m.Own(0), From(first, of.b, h, row), first.row, of.own_count, D);
    Tile::Copy(m.Own(1), From(second, of.b, h, row), second.row, of.own_count, Dv);
    simt::CopyCommit();
    if constexpr (!kKeys) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int at = RowOf(k * 2);
        own_rows_[k] = {0, 0, 0, 1};
        if (at < of.own_count) own_rows_[k] = p.RowsOf(of.b, of.h)[row + at];
      }
    }
  }
  SIMT_FN void Copy(const WideStep<T>& step, int stage) const {
    const int count = step.count;
    if (count > 0) {
      const WideBlock& of = *m.block;
      Tile::Copy(m.Other(stage, 0), step.first, of.first_row, count, of.D);
      Tile::Copy(m.Other(stage, 1), step.second, of.second_row, count, of.Dv);
      if (kKeys && threadIdx.x < kSide) {
        const int t = threadIdx.x;
        simt::CopyAsync<16>(m.rows + stage * kSide + t, step.rows + t, t < count);
      }
    }
    simt::CopyCommit();
  }

  SIMT_FN void Add(const WideStep<T>& step, int stage) {
    Fragment weights, dscores;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) weights[n][i] = dscores[n][i] = 0;
    }
    Tile::AddProduct(weights, m.Own(0), m.Other(stage, 0));
    Tile::AddProduct(dscores, m.Own(1), m.Other(stage, 1));
    Weigh(step, m.rows + stage * kSide, weights, dscores);
    if constexpr (kKeys)
      Tile::AddWeighted(second_, weights, m.block->weight_factor, m.Other(stage, 1));
    Tile::AddWeighted(first_, dscores, m.block->score_factor, m.Other(stage, 0));
  }

  // From products P and dS. Queries that do not exist, or see nothing, need no test: their rows
  // give weight 0, or are zeros.
  SIMT_FN void Weigh(const WideStep<T>& step, const GradRow* rows, Fragment& weights,
                     Fragment& dscores) const {
    // Lest what follows is loaded before, or all of it at once: registers hold sums.
    if (kKeys) __syncwarp();
    float scale = m.block->scale;
    if (step.constants != nullptr || step.key_bias != nullptr) {
      AddConstants(step, rows, weights);
      scale = 1;
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const GradRow& row = kKeys ? rows[ColumnOf(n, i)] : own_rows_[i >> 1];
        weights[n][i] = row.WeightOf(ScaledProduct(scale, weights[n][i]));
      }
    }
    if (kKeys) __syncwarp();
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const GradRow& row = kKeys ? rows[ColumnOf(n, i)] : own_rows_[i >> 1];
        dscores[n][i] = weights[n][i] * (dscores[n][i] - row.shift);
      }
    }
    const int keys = kKeys ? m.block->own_count : step.count;
    if (step.mask != nullptr || keys < kSide) Hide(step.mask, keys, weights, dscores);
  }
  // Scores in place of products.
  SIMT_FN void AddConstants(const WideStep<T>& step, const GradRow* rows, Fragment& weights) const {
    const int keys = kKeys ? m.block->own_count : step.count;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = RowOf(i), column = ColumnOf(n, i);
        const int query = kKeys ? column : row, key = kKeys ? row : column;
        float s = ScaledProduct(m.block->scale, weights[n][i]);
        // Any key's for one that does not exist.
        if (step.key_bias != nullptr) s = __fadd_rn(s, step.key_bias[min(key, keys - 1)]);
        if (step.constants != nullptr) s = __fadd_rn(s, step.constants[query * kSide + key]);
        // No score is above lse, but of rows that do not exist: weights of at most 1 stay in range.
        const GradRow& of = kKeys ? rows[column] : own_rows_[i >> 1];
        weights[n][i] = s > of.lse ? of.lse : s;
      }
      __syncwarp();
    }
  }
  SIMT_FN static void Hide(const uint64_t* mask, int keys, Fragment& weights, Fragment& dscores) {
    // Of the two own rows, which columns of this lane they see: bit n * 2 + (i & 1).
    unsigned seen[2] = {0, 0};
    uint64_t own[2] = {~uint64_t{0}, ~uint64_t{0}};
    if (!kKeys && mask != nullptr) own[0] = mask[RowOf(0)], own[1] = mask[RowOf(2)];
#pragma unroll 2
    for (int at = 0; at < 16; ++at) {
      const int column = ColumnOf(at >> 1, at & 1);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int key = kKeys ? RowOf(k * 2) : column;
        const uint64_t word = kKeys && mask != nullptr ? mask[column] : own[k];
        if (key < keys) seen[k] |= static_cast<unsigned>(word >> key & 1) << at;
      }
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if ((seen[i >> 1] >> (n * 2 + (i & 1)) & 1) == 0) weights[n][i] = dscores[n][i] = 0;
      }
    }
  }

  SIMT_FN static bool IsFinite(const WideFragment<kD>& sums) {
    bool finite = true;
#pragma unroll
    for (int n = 0; n < kD / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) finite = finite && sums[n][i] - sums[n][i] == 0;
    }
    return finite;
  }
  SIMT_FN void Store() const {
    bool finite = IsFinite(first_);
    if constexpr (kKeys) finite = finite && IsFinite(second_);
    const bool careful = __syncthreads_or(!finite) != 0;
    const WideBlock& of = *m.block;
    const GradData& p = *of.problem;
    if (threadIdx.x == 0) {
      int32_t* const flag = FlagOf(p, of.b, kKeys ? of.kv : of.h, of.tile, of.round);
      *flag = (careful ? GradData::kCareful : 0) | (p.searches ? GradData::kLargeLse : 0);
    }
    if (careful || (of.adds && of.own_count == 0)) return;
    StoreSums(first_, kKeys ? p.dk : p.dq, of.D, p.a.scale / of.score_factor);
    if constexpr (kKeys) StoreSums(second_, p.dv, of.Dv, 1 / of.weight_factor);
  }
  // All rows of the tile, which may see nothing.
  SIMT_FN void StoreSums(const WideFragment<kD>& sums, const Plane& to, int width,
                         float factor) const {
    const WideBlock& of = *m.block;
    float* scores = m.Scores();
    const int64_t first = of.tile * kSide,
                  begin = to.Head(of.b, kKeys ? of.kv : of.h) + first * to.row;
    const int rows = static_cast<int>(
        min((kKeys ? of.problem->a.Nk : of.problem->a.Nq) - first, int64_t{kSide}));
#pragma unroll
    for (int c = 0; c < kD / kSide; ++c) {
      __syncthreads();
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          scores[RowOf(i) * kScoreStride + ColumnOf(n, i)] = sums[c * 8 + n][i] * factor;
        }
      }
      __syncthreads();
#pragma unroll 1
      for (int at = threadIdx.x; at < kSide * kSide; at += kGradThreads) {
        const int row = at / kSide, column = at % kSide;
        if (row >= rows || c * kSide + column >= width) continue;
        const int64_t place = begin + row * to.row + c * kSide + column;
        const float before = of.adds ? LoadFloat(to.data, to.dtype, place) : 0.0f;
        StoreFloat(to.data, to.dtype, place, before + scores[row * kScoreStride + column]);
      }
    }
  }

  const WideShared<T, kPass, kD> m;
  GradRow own_rows_[2];                  // of queries: of the two rows of a lane
  WideFragment<kD> first_;               // of dq or dk
  WideFragment<kKeys ? kD : 8> second_;  // of dv
};

template <class T, int kD>
__global__ void __launch_bounds__(kGradThreads, kWideBlocks<kD>)
    GradWideQueries(const __grid_constant__ Problems<GradData> problems, const int64_t round) {
  const auto [p, block, index] = FindPlace(problems);
  if (round >= p.query_rounds) return;
  // The last tiles first: under a causal mask they are the longest.
  const int64_t tile = p.query_tiles - 1 - block % p.query_tiles;
  const int64_t h = block / p.query_tiles % p.a.H, b = block / p.query_tiles / p.a.H;
  using Wide = GradWide<T, GradPass::kQueries, kD>;
  if (!Wide::Computes(p, b, h, tile, round)) return;
  simt::SharedTiles shared;
  Wide(shared).Run(p, b, h, 1, tile, round);
}

template <class T, int kD>
__global__ void __launch_bounds__(kGradThreads, kWideBlocks<kD>)
    GradWideKeys(const __grid_constant__ Problems<GradData> problems, const int64_t round) {
  const auto [p, block, index] = FindPlace(problems);
  if (round >= p.key_rounds) return;
  const int64_t kv_heads = p.a.H / p.a.group, tile = block % p.key_tiles;
  const int64_t kv = block / p.key_tiles % kv_heads, b = block / p.key_tiles / kv_heads;
  using Wide = GradWide<T, GradPass::kKeys, kD>;
  if (!Wide::Computes(p, b, kv, tile, round)) return;
  simt::SharedTiles shared;
  Wide(shared).Run(p, b, kv * p.a.group, p.a.group, tile, round);
}

}  // namespace attnd::cuda::attend_grad
