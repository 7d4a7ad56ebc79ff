// A tile of queries and a tile of keys of one head in the gradient of attend: from their operands
// in shared memory the weights P and the score gradients dS and dT.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attend/attend_grad_data.h"
#include "kernels/cuda/attend/attend_grad_shared.h"
#include "kernels/cuda/attend/attend_grad_tile.h"
#include "kernels/cuda/attend/attend_relative.cuh"
#include "kernels/cuda/attend/attend_terms.h"
#include "kernels/cuda/attend/narrow_product.h"
#include "kernels/cuda/simt.h"

namespace attnd::cuda::attend_grad {

// What a pass wants beside the weights.
struct GradWants {
  bool scores;        // dS: the product of dout and v
  bool tile;          // GradShared::scores and seen_by_own
  bool early_scores;  // the tile holds dS before the soft cap
  bool sides;         // sums for slopes and dbias
};

// kTerms: of problems with AttendData::has_terms, and with gradients of terms.
template <class T, GradPass kPass, bool kTerms>
class GradPair {
 public:
  static constexpr bool kMayBeRelative = kTerms && std::is_same_v<T, float>;

  SIMT_FN GradPair(const GradData& problem, simt::SharedTiles& shared)
      : p(problem),
        m(shared, problem.resident ? problem.columns + problem.v_columns : 1,
          kMayBeRelative && problem.a.r.data != nullptr),
        resident_(problem.resident) {}

  // The own tile of a head: its slots, and its columns where they are resident.
  SIMT_FN void LoadOwn(int64_t b, int64_t h, int64_t tile) {
    own_tile = tile;
    UseHead(b, h);
    if (kPass == GradPass::kKeys) {
      LoadKeySlots(tile, m.own_rows);
    } else {
      LoadQuerySlots(tile, m.own_rows);
    }
    __syncthreads();
    if (!resident_) return;
#pragma unroll 1
    for (int c = 0; c < p.columns; ++c) LoadColumns(true, false, c, c);
    if (p.dout.data == nullptr) return;
#pragma unroll 1
    for (int c = 0; c < p.v_columns; ++c) LoadColumns(true, true, c, p.columns + c);
  }
  // Another query head with the same own keys.
  SIMT_FN void UseHead(int64_t b, int64_t h) {
    __syncthreads();
    if (threadIdx.x == 0) *m.head = AttendHead::Of(p.a, b, h);
    __syncthreads();
  }
  SIMT_FN const AttendHead& head() const { return *m.head; }

  // Walks begin over the tile that GradRound::FindTile has found.
  SIMT_FN void StartWalks() const {
    if (threadIdx.x == 0) m.round->of_walks = m.round->of_tile;
  }
  // Walks over visible tiles of row `row` of the head's pattern, below tile number `tiles`.
  SIMT_FN void StartWalk(int64_t row, int64_t tiles) const {
    if (threadIdx.x > 0) return;
    const TileRunRows* side = SideOf(kPass, head());
    const PairRange part = m.round->of_walks.Pass(PairsOf(side, row, tiles));
    *m.walk = TileWalk(side, row, tiles, part.skip, part.take);
    Publish();
  }
  // Over tiles [first, end) of the keys alone.
  SIMT_FN void StartWalk(int64_t row, int64_t first, int64_t end) const {
    static_assert(kPass != GradPass::kKeys);
    if (threadIdx.x > 0) return;
    const PatternData* pattern = head().pattern;
    *m.walk = TileWalk::From(pattern == nullptr ? nullptr : &pattern->by_query, row, end, first);
    Publish();
  }
  SIMT_FN void NextStep() const {
    if (threadIdx.x > 0) return;
    m.walk->Next();
    Publish();
  }
  SIMT_FN GradStep Step() const {
    __syncthreads();
    return *m.step;
  }

  // P in `weights`, dT in `dscores`: 0 where a pair is not visible. Slots of the other tile, and
  // its columns where they are resident, stay in shared memory.
  SIMT_FN void Weigh(const GradStep& step, const GradWants& wants, Fragment& weights,
                     Fragment& dscores) {
    if (kPass == GradPass::kKeys) {
      LoadQuerySlots(step.other_tile, m.other_rows);
    } else {
      LoadKeySlots(step.other_tile, m.other_rows);
    }
    __syncthreads();
    const bool has_dp = wants.scores && p.dout.data != nullptr;
    if (resident_) {
#pragma unroll 1
      for (int c = 0; c < p.columns; ++c) LoadColumns(false, false, c, c);
      // Of keys dout serves dv, too.
      if (p.dout.data != nullptr) {
#pragma unroll 1
        for (int c = 0; c < p.v_columns; ++c) LoadColumns(false, true, c, p.columns + c);
      }
    }
    all_seen = FinishLoads(FindSeen(step.mask));
    if constexpr (kMayBeRelative) {
      if (p.a.r.data != nullptr) FindRelatives(step);
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) weights[n][i] = dscores[n][i] = 0;
    }
#pragma unroll 1
    for (int c = 0; c < p.columns; ++c) AddProduct(weights, false, c);
#pragma unroll 1
    for (int c = 0; has_dp && c < p.v_columns; ++c) AddProduct(dscores, true, c);
    const TermsData* tile_terms = step.terms < 0 ? nullptr : head().pattern->terms + step.terms;
    if constexpr (kTerms) {
      WeighWithTerms(tile_terms, wants, weights, dscores);
    } else {
      WeighPlain(tile_terms, weights, dscores);
      if (wants.tile) FindSeenByOwn();
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
  int64_t own_tile = 0;
  bool all_seen = false;  // of the last Weigh: masks and missing rows hide no pair of the tile
  float slope_sums[2] = {0, 0};  // of dS |p_i - p_j| in the two own rows of a lane

 private:
  SIMT_FN void Publish() const {
    *m.step = {m.walk->index(), m.walk->mask(), m.walk->terms(), m.walk->done()};
  }
  SIMT_FN void LoadQuerySlots(int64_t tile, int32_t* rows) const {
    if (threadIdx.x >= kSide) return;
    const int64_t row = head().QueryRow(tile * kSide + threadIdx.x);
    GradRow terms = {0, 0, 0, 1};
    bool exists = row >= 0 && row < head().nq;
    if (exists) {
      terms = p.RowsOf(head().b, head().h)[row];
      exists = terms.low_2 != INFINITY;
    }
    rows[threadIdx.x] = exists ? static_cast<int32_t>(row) : -1;
    m.rows[threadIdx.x] = terms;
    m.positions[threadIdx.x] = Position::Of(row, head().offset);
  }
  SIMT_FN void LoadKeySlots(int64_t tile, int32_t* rows) const {
    if (threadIdx.x >= kSide) return;
    const int64_t slot = tile * kSide + threadIdx.x, row = head().KeyRow(slot);
    const bool exists = row >= 0;
    rows[threadIdx.x] = static_cast<int32_t>(row);
    const PatternData* pattern = head().pattern;
    const bool has_bias = exists && pattern != nullptr && pattern->key_bias != nullptr;
    m.key_bias[threadIdx.x] = has_bias ? pattern->key_bias[slot] : 0.0f;
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
      if (mask >= 0) word &= head().pattern->masks[int64_t{mask} * kSide + threadIdx.x];
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
      const HeadRows rows = HeadRows::Of(second ? p.dout : a.q, head().b, head().h);
      return {rows, rows, INT64_MAX, width, p.vectors};
    }
    return {HeadRows::Of(second ? a.v : a.k, head().b, head().kv),
            HeadRows::Of(second ? a.v2 : a.k2, head().b, head().kv), a.Nk, width, p.vectors};
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
    // The scores of both passes and of the forward are the same bits: P sums to 1 as it did there.
    const T* own = m.own + place * TileOf<T>::kElements;
    const T* other = m.other + place * TileOf<T>::kElements;
    const int width = (second ? p.a.Dv : p.a.D) - c * kSide;
    if constexpr (std::is_same_v<T, float>) {
      if (!second && p.a.product_type != DType::kF32) {
        own += threadIdx.x / 32 * 16 * TileOf<T>::kStride;
        AddNarrowProducts(p.a.product_type, sums, own, other, TileOf<T>::kStride,
                          (min(width, kSide) + 15) / 16 * 16);
        return;
      }
    }
    TileOf<T>::template AddProduct<kPass == GradPass::kKeys>(sums, own, other, width);
  }

  // Products of the relative term, as the forward finds them: where the tiles' distances fit in a
  // window, or -1 in relative_first_, and pair by pair.
  SIMT_FN void FindRelatives(const GradStep& step);

  SIMT_FN bool Sees(int query, int key) const { return (m.seen_by_query[query] >> key & 1) != 0; }

  SIMT_FN void FindSeenByOwn() const {
    if (threadIdx.x >= kSide) return;
    uint64_t seen = m.seen_by_query[threadIdx.x];
    if (kPass == GradPass::kKeys) {
      seen = 0;
      for (int query = 0; query < kSide; ++query) {
        seen |= (m.seen_by_query[query] >> threadIdx.x & 1) << query;
      }
    }
    m.seen_by_own[threadIdx.x] = seen;
  }

  // Softmax without terms but constants of the pattern.
  SIMT_FN void WeighPlain(const TermsData* terms, Fragment& weights, Fragment& dscores) const {
    const float scale = p.a.scale;
    const float* constants = terms == nullptr ? nullptr : terms->bias;
    const bool has_constants =
        constants != nullptr || (head().pattern != nullptr && head().pattern->key_bias != nullptr);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = RowOf(i), column = ColumnOf(n, i);
        const int query = kPass == GradPass::kKeys ? column : row;
        const int key = kPass == GradPass::kKeys ? row : column;
        const GradRow& of_row = m.rows[query];
        float s = ScaledProduct(scale, weights[n][i]);
        if (has_constants) {
          s = __fadd_rn(s, m.key_bias[key]);
          if (constants != nullptr) s = __fadd_rn(s, constants[query * kSide + key]);
        }
        float weight = of_row.WeightOf(s);
        float dscore = weight * (dscores[n][i] - of_row.shift);
        if (!all_seen && !Sees(query, key)) weight = dscore = 0;
        weights[n][i] = weight;
        dscores[n][i] = dscore;
      }
    }
  }

  SIMT_FN float RelativeProduct(int query, int64_t query_row, int64_t delta) const {
    if (relative_first_ >= 0) {
      const float product = m.relative[query * kRelativeStride + delta - relative_first_];
      // Split, infinities give NaN.
      if (product == product) return product;
    }
    const HeadRows q_rel = HeadRows::Of(p.a.q_rel, head().b, head().h);
    const HeadRows r = HeadRows::Of(p.a.r, head().b, head().h);
    float sum = 0;
#pragma unroll 1
    for (int d = 0; d < p.a.D; ++d) {
      sum = fmaf(LoadFloat(q_rel.data, q_rel.dtype, q_rel.At(query_row) + d),
                 LoadFloat(r.data, r.dtype, r.At(delta) + d), sum);
    }
    return sum;
  }

  SIMT_FN void WeighWithTerms(const TermsData* terms, const GradWants& wants, Fragment& weights,
                              Fragment& dscores) {
    const Slope slope = Slope::Of(p.a, head().b, head().h);
    const int32_t* query_rows = kPass == GradPass::kKeys ? m.other_rows : m.own_rows;
    const int32_t* key_rows = kPass == GradPass::kKeys ? m.own_rows : m.other_rows;
    uint64_t seen[2] = {0, 0};
    float distances[2] = {0, 0};
    // One copy of the code for all elements, which lie in local memory meanwhile.
    float p_of[32], ds_of[32];
#pragma unroll
    for (int e = 0; e < 32; ++e) p_of[e] = weights[e / 4][e % 4], ds_of[e] = dscores[e / 4][e % 4];
#pragma unroll 1
    for (int e = 0; e < 32; ++e) {
      const int upper = e >> 1 & 1, row = LaneRow() + upper * 8, column = ColumnOf(e >> 2, e & 1);
      const int query = kPass == GradPass::kKeys ? column : row;
      const int key = kPass == GradPass::kKeys ? row : column;
      bool sees = all_seen || Sees(query, key);
      float weight = 0, dscore = 0, kept = 0;
      if (sees) {
        const int64_t query_row = query_rows[query], key_row = key_rows[key];
        const Position position = m.positions[query];
        float product = p_of[e];
        if constexpr (kMayBeRelative) {
          if (p.a.r.data != nullptr) {
            product += RelativeProduct(query, query_row, position.DeltaTo(key_row, p.a.L));
          }
        }
        float through_cap;
        const float s = ScoreOf(
            p.a, head().b, head().h, product,
            {query_row, key_row, position, slope, m.key_bias[key], terms, query * kSide + key},
            &sees, &through_cap);
        if (sees) {
          const GradRow& of_row = m.rows[query];
          if (p.a.is_softmax()) {
            weight = of_row.WeightOf(s);
            dscore = weight * (ds_of[e] - of_row.shift);
          } else {
            const Weight of_score = WeightOf(p.a.weighting, s);
            weight = of_row.factor * of_score.phi;
            dscore = of_row.factor * of_score.slope * ds_of[e];
          }
          kept = dscore * through_cap;
          const uint64_t bit = uint64_t{1} << column;
          seen[0] |= upper == 0 ? bit : 0;
          seen[1] |= upper == 0 ? 0 : bit;
          if (wants.sides && slope.given) {
            const float product_of = dscore * position.DistanceTo(key_row);
            distances[0] += upper == 0 ? product_of : 0;
            distances[1] += upper == 0 ? 0 : product_of;
          }
          if (wants.sides && p.dbias.data != nullptr) {
            StoreFloat(p.dbias.data, p.dbias.dtype,
                       p.dbias.Head(head().b, head().h) + query_row * p.dbias.row +
                           key_row * p.dbias.column,
                       dscore);
          }
        }
      }
      if (wants.tile) m.scores[row * kScoreStride + column] = wants.early_scores ? dscore : kept;
      p_of[e] = weight;
      ds_of[e] = kPass == GradPass::kBias ? dscore : kept;
    }
#pragma unroll
    for (int e = 0; e < 32; ++e) weights[e / 4][e % 4] = p_of[e], dscores[e / 4][e % 4] = ds_of[e];
    slope_sums[0] += distances[0];
    slope_sums[1] += distances[1];
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
  int32_t relative_first_ = -1;  // the least distance of the window
};

}  // namespace attnd::cuda::attend_grad

#include "kernels/cuda/attend/attend_grad_relative.cuh"
