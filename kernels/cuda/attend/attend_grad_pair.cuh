// A tile of queries and a tile of keys of one head in the gradient of attend: from their operands in
// shared memory the weights P and the score gradients dS and dT.
#pragma once

#include <cstdint>

#include "kernels/cuda/attend/attend_grad_data.h"
#include "kernels/cuda/attend/attend_grad_tile.h"
#include "kernels/cuda/attend/attend_terms.h"
#include "kernels/cuda/simt.h"

namespace attnd::cuda {

enum class GradPass { kQueries, kKeys, kBias };

constexpr int kScoreStride = kSide + 1;

// Tiles of shared memory. `chunks`: of D and Dv together, or 1.
template <class T>
struct GradShared {
  T *own, *other;
  float* scores;              // [own row][other row]
  uint64_t* seen_by_query;    // of the tile of keys, by masks
  uint64_t* seen_by_own;      // of the other tile, by masks and bias; where they are needed
  int32_t *own_rows, *other_rows;  // -1: none, or one that sees nothing
  GradRow* rows;              // of queries
  Position* positions;        // of queries
  float* key_bias;
  uint32_t* keys_exist;       // bits

  SIMT_FN GradShared(simt::SharedTiles& shared, int chunks) {
    own = shared.Take<T>(chunks * TileOf<T>::kElements);
    other = shared.Take<T>(chunks * TileOf<T>::kElements);
    scores = shared.Take<float>(kSide * kScoreStride);
    seen_by_query = shared.Take<uint64_t>(kSide);
    seen_by_own = shared.Take<uint64_t>(kSide);
    own_rows = shared.Take<int32_t>(kSide);
    other_rows = shared.Take<int32_t>(kSide);
    rows = shared.Take<GradRow>(kSide);
    positions = shared.Take<Position>(kSide);
    key_bias = shared.Take<float>(kSide);
    keys_exist = shared.Take<uint32_t>(2);
  }
  static constexpr size_t Bytes(int chunks) {
    return 2 * simt::SharedBytes<T>(chunks * TileOf<T>::kElements) +
           simt::SharedBytes<float>(kSide * kScoreStride) + 2 * simt::SharedBytes<uint64_t>(kSide) +
           2 * simt::SharedBytes<int32_t>(kSide) + simt::SharedBytes<GradRow>(kSide) +
           simt::SharedBytes<Position>(kSide) + simt::SharedBytes<float>(kSide) +
           simt::SharedBytes<uint32_t>(2);
  }
};

// What a pass wants beside the weights.
struct GradWants {
  bool scores;       // dS: the product of dout and v
  bool tile;         // GradShared::scores and seen_by_own
  bool early_scores; // the tile holds dS before the soft cap
  bool sides;        // sums for slopes and dbias
};

template <class T, GradPass kPass>
class GradPair {
 public:
  SIMT_FN GradPair(const GradData& problem, simt::SharedTiles& shared)
      : p(problem),
        m(shared, problem.resident ? problem.columns + problem.v_columns : 1),
        resident_(problem.resident) {}

  // The own tile of `head`: its slots, and its columns where they are resident.
  SIMT_FN void LoadOwn(const AttendHead& own_head, int64_t tile) {
    head = own_head;
    own_tile = tile;
    __syncthreads();
    if (kPass == GradPass::kKeys) {
      LoadKeySlots(tile, m.own_rows);
    } else {
      LoadQuerySlots(tile, m.own_rows);
    }
    __syncthreads();
    if (!resident_) return;
    for (int c = 0; c < p.columns; ++c) LoadColumns(true, false, c, c);
    if (p.dout.data == nullptr) return;
    for (int c = 0; c < p.v_columns; ++c) LoadColumns(true, true, c, p.columns + c);
  }
  // Another query head with the same own keys.
  SIMT_FN void UseHead(const AttendHead& other_head) { head = other_head; }

  // P in `weights`, dT in `dscores`: 0 where a pair is not visible. Slots of the other tile, and its
  // columns where they are resident, stay in shared memory.
  SIMT_FN void Weigh(int64_t other_tile, int mask, int terms, const GradWants& wants,
                     Fragment& weights, Fragment& dscores) {
    __syncthreads();
    if (kPass == GradPass::kKeys) {
      LoadQuerySlots(other_tile, m.other_rows);
    } else {
      LoadKeySlots(other_tile, m.other_rows);
    }
    __syncthreads();
    const bool has_dp = wants.scores && p.dout.data != nullptr;
    if (resident_) {
      for (int c = 0; c < p.columns; ++c) LoadColumns(false, false, c, c);
      // Of keys dout serves dv, too.
      if (p.dout.data != nullptr) {
        for (int c = 0; c < p.v_columns; ++c) LoadColumns(false, true, c, p.columns + c);
      }
    }
    const bool all_seen = FinishLoads(FindSeen(mask));
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) weights[n][i] = dscores[n][i] = 0;
    }
    for (int c = 0; c < p.columns; ++c) AddProduct(weights, false, c);
    for (int c = 0; has_dp && c < p.v_columns; ++c) AddProduct(dscores, true, c);
    const PatternData* pattern = head.pattern;
    const TermsData* tile_terms = terms < 0 ? nullptr : pattern->terms + terms;
    const bool has_key_bias = pattern != nullptr && pattern->key_bias != nullptr;
    if (p.a.has_terms || tile_terms != nullptr || has_key_bias || wants.tile || wants.sides) {
      WeighWithTerms(all_seen, tile_terms, wants, weights, dscores);
    } else {
      WeighPlain(all_seen, weights, dscores);
    }
  }

  // Columns of the other tile: of k, of q in the pass of keys, or (second) of v, of dout. In shared
  // memory until the next call.
  SIMT_FN const T* OtherColumns(bool second, int c) const {
    if (resident_) return m.other + (second ? p.columns + c : c) * TileOf<T>::kElements;
    __syncthreads();
    LoadColumns(false, second, c, 0);
    FinishLoads(true);
    return m.other;
  }
  // The tile of scores with the numbers of a fragment.
  SIMT_FN void WriteScores(const Fragment& values) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        m.scores[RowOf(i) * kScoreStride + ColumnOf(n, i)] = values[n][i];
      }
    }
  }

  const GradData& p;
  const GradShared<T> m;
  AttendHead head;      // of the queries
  int64_t own_tile = 0;
  float slope_sums[2] = {0, 0};  // of dS |p_i - p_j| in the two own rows of a lane

 private:
  SIMT_FN void LoadQuerySlots(int64_t tile, int32_t* rows) const {
    if (threadIdx.x >= kSide) return;
    const int64_t row = head.QueryRow(tile * kSide + threadIdx.x);
    GradRow terms = {0, 0, 0, 1};
    bool exists = row >= 0 && row < head.nq;
    if (exists) {
      terms = p.RowsOf(head.b, head.h)[row];
      exists = terms.lse_low != INFINITY;
    }
    rows[threadIdx.x] = exists ? static_cast<int32_t>(row) : -1;
    m.rows[threadIdx.x] = terms;
    m.positions[threadIdx.x] = Position::Of(row, head.offset);
  }
  SIMT_FN void LoadKeySlots(int64_t tile, int32_t* rows) const {
    if (threadIdx.x >= kSide) return;
    const int64_t slot = tile * kSide + threadIdx.x, row = head.KeyRow(slot);
    const bool exists = row >= 0;
    rows[threadIdx.x] = static_cast<int32_t>(row);
    const bool has_bias = exists && head.pattern != nullptr && head.pattern->key_bias != nullptr;
    m.key_bias[threadIdx.x] = has_bias ? head.pattern->key_bias[slot] : 0.0f;
    const unsigned votes = __ballot_sync(simt::kAllLanes, exists);
    if (threadIdx.x % 32 == 0) m.keys_exist[threadIdx.x / 32] = votes;
  }
  // Whether the query of this thread sees all keys of the tile.
  SIMT_FN bool FindSeen(int mask) const {
    if (threadIdx.x >= kSide) return true;
    const int32_t* rows = kPass == GradPass::kKeys ? m.other_rows : m.own_rows;
    uint64_t word = 0;
    if (rows[threadIdx.x] >= 0) {
      word = uint64_t{m.keys_exist[1]} << 32 | m.keys_exist[0];
      if (mask >= 0) word &= head.pattern->masks[int64_t{mask} * kSide + threadIdx.x];
    }
    m.seen_by_query[threadIdx.x] = word;
    return word == ~uint64_t{0};
  }
  SIMT_FN bool FinishLoads(bool vote) const {
    simt::CopyCommit();
    simt::CopyWait<0>();
    return __syncthreads_and(vote) != 0;
  }

  SIMT_FN TileSource Source(bool own, bool second) const {
    const bool of_keys = own == (kPass == GradPass::kKeys);
    const AttendData& a = p.a;
    const int width = second ? a.Dv : a.D;
    if (!of_keys) {
      const HeadRows rows = HeadRows::Of(second ? p.dout : a.q, head.b, head.h);
      return {rows, rows, INT64_MAX, width, p.vectors};
    }
    return {HeadRows::Of(second ? a.v : a.k, head.b, head.kv),
            HeadRows::Of(second ? a.v2 : a.k2, head.b, head.kv), a.Nk, width, p.vectors};
  }
  SIMT_FN void LoadColumns(bool own, bool second, int c, int place) const {
    LoadTile((own ? m.own : m.other) + place * TileOf<T>::kElements, Source(own, second),
             own ? m.own_rows : m.other_rows, c * kSide);
  }
  SIMT_FN void AddProduct(Fragment& sums, bool second, int c) const {
    const int place = resident_ ? (second ? p.columns + c : c) : 0;
    if (!resident_) {
      __syncthreads();
      LoadColumns(true, second, c, 0);
      LoadColumns(false, second, c, 0);
      FinishLoads(true);
    }
    TileOf<T>::AddProduct(sums, m.own + place * TileOf<T>::kElements,
                          m.other + place * TileOf<T>::kElements,
                          (second ? p.a.Dv : p.a.D) - c * kSide);
  }

  SIMT_FN bool Sees(int query, int key) const { return (m.seen_by_query[query] >> key & 1) != 0; }

  // Softmax without terms.
  SIMT_FN void WeighPlain(bool all_seen, Fragment& weights, Fragment& dscores) const {
    const float scale = p.a.scale;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = RowOf(i), column = ColumnOf(n, i);
        const int query = kPass == GradPass::kKeys ? column : row;
        const int key = kPass == GradPass::kKeys ? row : column;
        const GradRow& terms = m.rows[query];
        float weight = simt::Exp2(fmaf(scale, weights[n][i], -terms.lse_high) - terms.lse_low);
        float dscore = weight * (dscores[n][i] - terms.shift);
        if (!all_seen && !Sees(query, key)) weight = dscore = 0;
        weights[n][i] = weight;
        dscores[n][i] = dscore;
      }
    }
  }

  SIMT_FN float RelativeProduct(int64_t query_row, int64_t delta) const {
    const HeadRows q_rel = HeadRows::Of(p.a.q_rel, head.b, head.h);
    const HeadRows r = HeadRows::Of(p.a.r, head.b, head.h);
    float sum = 0;
    for (int d = 0; d < p.a.D; ++d) {
      sum = fmaf(LoadFloat(q_rel.data, q_rel.dtype, q_rel.At(query_row) + d),
                 LoadFloat(r.data, r.dtype, r.At(delta) + d), sum);
    }
    return sum;
  }

  SIMT_FN void WeighWithTerms(bool all_seen, const TermsData* terms, const GradWants& wants,
                              Fragment& weights, Fragment& dscores) {
    const Slope slope = Slope::Of(p.a, head.b, head.h);
    const int32_t* query_rows = kPass == GradPass::kKeys ? m.other_rows : m.own_rows;
    const int32_t* key_rows = kPass == GradPass::kKeys ? m.own_rows : m.other_rows;
    uint64_t seen[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = RowOf(i), column = ColumnOf(n, i);
        const int query = kPass == GradPass::kKeys ? column : row;
        const int key = kPass == GradPass::kKeys ? row : column;
        bool sees = all_seen || Sees(query, key);
        float weight = 0, dscore = 0, kept = 0;
        if (sees) {
          const int64_t query_row = query_rows[query], key_row = key_rows[key];
          const Position position = m.positions[query];
          float product = weights[n][i];
          if (p.a.r.data != nullptr) {
            product += RelativeProduct(query_row, position.DeltaTo(key_row, p.a.L));
          }
          float through_cap;
          const float s = ScoreOf(p.a, head.b, head.h, p.a.scale * product,
                                  {query_row, key_row, position, slope, m.key_bias[key], terms,
                                   query * kSide + key},
                                  &sees, &through_cap);
          if (sees) {
            const GradRow& of_row = m.rows[query];
            if (p.a.is_softmax()) {
              // No weight is above 1, however far the rounding of a large lse is from it.
              const float exponent = s - of_row.lse_high - of_row.lse_low;
              weight = simt::Exp2(exponent > 0 ? 0 : exponent);
              dscore = weight * (dscores[n][i] - of_row.shift);
            } else {
              const Weight of_score = WeightOf(p.a.weighting, s);
              weight = of_row.factor * of_score.phi;
              dscore = of_row.factor * of_score.slope * dscores[n][i];
            }
            kept = dscore * through_cap;
            seen[i >> 1] |= uint64_t{1} << column;
            if (wants.sides && slope.given) {
              slope_sums[i >> 1] += dscore * position.DistanceTo(key_row);
            }
            if (wants.sides && p.dbias.data != nullptr) {
              StoreFloat(p.dbias.data, p.dbias.dtype,
                         p.dbias.Head(head.b, head.h) + query_row * p.dbias.row +
                             key_row * p.dbias.column,
                         dscore);
            }
          }
        }
        if (wants.tile) {
          m.scores[row * kScoreStride + column] = wants.early_scores ? dscore : kept;
        }
        weights[n][i] = weight;
        dscores[n][i] = kPass == GradPass::kBias ? dscore : kept;
      }
    }
    if (!wants.tile) return;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      for (int flip = 1; flip < 4; flip *= 2) {
        seen[k] |= __shfl_xor_sync(simt::kAllLanes, static_cast<unsigned long long>(seen[k]), flip);
      }
      if (threadIdx.x % 4 == 0) m.seen_by_own[RowOf(k * 2)] = seen[k];
    }
  }

  const bool resident_;
};

}  // namespace attnd::cuda
