// What a block of attention's gradient over tiles sums (attend_grad.cuh).
#pragma once

#include <cstdint>

#include "kernels/cuda/attend/attend_grad_pair.cuh"
#include "kernels/cuda/attend/attend_grad_round.h"

namespace attnd::cuda::attend_grad {

// A block's tile with the sums of kUnits pieces of 64 columns of its gradients.
template <class T, GradPass kPass, int kUnits, bool kTerms>
class GradSums {
 public:
  SIMT_FN GradSums(const GradData& problem, simt::SharedTiles& shared, int part, int64_t round)
      : p(problem),
        pair_(problem, shared),
        first_(kPass == GradPass::kKeys ? p.key_first : p.query_first),
        units_(first_ + (kPass == GradPass::kKeys ? p.key_second : p.query_second)),
        part_(part) {
    if (threadIdx.x == 0) pair_.m.round->rest = p.RangeOf(RoundsOf(kPass, p), round);
    const bool has_sides = kTerms && kPass == GradPass::kQueries && part == 0;
    has_table_ = has_sides && p.dtable.data != nullptr;
    has_dr_ = has_sides && p.dr_sums != nullptr;
    has_slopes_ = has_sides && p.slope_sums != nullptr;
    has_bias_ = has_sides && p.dbias.data != nullptr;
    const bool first_kind = part * kUnits < first_;
    wants_ = {first_kind || kPass == GradPass::kQueries, false, false, false};
  }

  // What the round has of own tiles `tile`, tile + apart, ..., whose slots are those of `heads`
  // query heads from `h` on. is_careful: they are known to need care. False: the round has ended.
  SIMT_FN bool RunTiles(int64_t b, int64_t h, int64_t heads, int64_t tile, int64_t apart, int share,
                        bool is_careful) {
    const int64_t end = OwnTilesOf(kPass, p, AttendHead::Of(p.a, b, h));
    GradRound* const of = pair_.m.round;
    while (true) {
      InOneWarp(of,
                [&](GradRound& round) { round.FindTile(kPass, p, b, h, heads, tile, apart, end); });
      if (of->tile < 0) return of->rest.take > 0;
      tile = of->tile + apart;
      Run(b, h, heads, of->tile, share, is_careful);
    }
  }
  // Where heads have tiles of their own: the one from `h` on where the round begins, or before.
  SIMT_FN int64_t FirstHead(int64_t b, int64_t h, int64_t end, int64_t tile, int64_t apart) const {
    if (RoundsOf(kPass, p) == 1) return h;
    GradRound* const of = pair_.m.round;
    InOneWarp(of, [&](GradRound& round) { round.FindHead(kPass, p, b, h, end, tile, apart); });
    return of->first;
  }

 private:
  SIMT_FN void Run(int64_t b, int64_t h, int64_t heads, int64_t tile, int share, bool is_careful) {
    share_ = share;
    pair_.LoadOwn(b, h, tile);
    pair_.slope_sums[0] = pair_.slope_sums[1] = 0;
    SetFactors(heads);
    // Again with care if a product with what no pair shows gave NaN, or a number left its range.
#pragma unroll 1
    for (bool careful = is_careful;; careful = true) {
      pair_.StartWalks();
      Walk(b, h, heads, careful);
      if (careful || __syncthreads_or(!IsFinite()) == 0) break;
    }
    Store();
  }

  SIMT_FN int Unit(int u) const { return part_ * kUnits + u; }

  SIMT_FN void Walk(int64_t b, int64_t h, int64_t heads, bool careful) {
    const bool sides = !careful;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums_[u][n][i] = 0;
      }
    }
    const bool has_relative = kTerms && kPass == GradPass::kQueries && p.query_second > 0 &&
                              (part_ + 1) * kUnits > first_;
    wants_.sides = sides && (has_slopes_ || has_bias_);
    adds_from_tile_ = careful || has_relative;
    wants_.tile = adds_from_tile_ || (sides && (has_table_ || has_dr_));
    wants_.early_scores = has_table_ && sides && !p.a.cap_table;
    for (int64_t of = pair_.m.round->first; of < h + heads; ++of) {
      if (heads > 1) pair_.UseHead(b, of);
      pair_.StartWalk(pair_.own_tile, OtherTilesOf(kPass, pair_.head()));
      while (true) {
        const GradStep step = pair_.Step();
        if (step.done) break;
        Fragment weights, dscores;
        pair_.Weigh(step, wants_, weights, dscores);
        if (kTerms && sides && (has_table_ || has_dr_)) AddSides(step.terms, dscores);
        Add(weights, dscores, careful);
        pair_.NextStep();
      }
      if (pair_.m.round->of_walks.take == 0) break;
    }
  }

  SIMT_FN void Add(const Fragment& weights, const Fragment& dscores, bool careful) {
    if (adds_from_tile_) {
      __syncthreads();
      pair_.WriteScores(dscores);
      __syncthreads();
    }
    const bool exact = kPass == GradPass::kKeys ? p.exact_dk : p.exact_dq;
    const bool scores_careful = careful && NeedsCare(dscores, score_factor_, exact);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int unit = Unit(u);
      if (unit >= units_ || unit >= first_) break;
      AddTo(sums_[u], dscores, score_factor_, false, unit, scores_careful, exact);
    }
    if constexpr (kPass == GradPass::kQueries) {
#pragma unroll
      for (int u = 0; kTerms && u < kUnits; ++u) {
        const int unit = Unit(u);
        if (unit >= first_ && unit < units_) AddRelative(sums_[u], unit - first_);
      }
      return;
    }
    if (p.dout.data == nullptr) return;
    const bool weights_careful = careful && NeedsCare(weights, weight_factor_, p.exact_dv);
    if (weights_careful) {
      __syncthreads();
      pair_.WriteScores(weights);
      __syncthreads();
    }
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int unit = Unit(u);
      if (unit >= first_ && unit < units_) {
        AddTo(sums_[u], weights, weight_factor_, true, unit - first_, weights_careful, p.exact_dv);
      }
    }
  }
  // Whether tensor cores would add a product with what no pair shows, or of a weight that leaves
  // its range. The same in all threads.
  SIMT_FN bool NeedsCare(const Fragment& weights, float factor, bool exact) const {
    if (kTerms || std::is_same_v<T, float> || exact || !pair_.all_seen) return true;
    return __syncthreads_and(StaysInRange(T(), weights, factor)) == 0;
  }
  SIMT_FN void AddTo(Fragment& sums, const Fragment& weights, float factor, bool second, int c,
                     bool careful, bool exact) {
    const T* other = pair_.OtherColumns(second, c);
    const int width = (second ? p.a.Dv : p.a.D) - c * kSide;
    if (!careful && (std::is_same_v<T, float> || exact)) {
      return TileOf<T>::template AddWeighted<true>(sums, weights, factor, other, width);
    }
    if constexpr (!std::is_same_v<T, float>) {
      if (!careful)
        return TileOf<T>::template AddWeighted<false>(sums, weights, factor, other, width);
    }
    const auto value = [&](int, int x, int column) {
      return ToFloat(other[TileOf<T>::At(x, column)]);
    };
    AddOneByOne(sums, factor, width, value);
  }
  // sums += the tile of scores times value(row, x, column), where row sees x.
  template <class F>
  SIMT_FN void AddOneByOne(Fragment& sums, float factor, int width, const F& value) const {
    float of[32];
#pragma unroll
    for (int e = 0; e < 32; ++e) of[e] = sums[e / 4][e % 4];
#pragma unroll 1
    for (int k = 0; k < 2; ++k) {
      const int row = LaneRow() + k * 8;
      for (uint64_t rest = pair_.m.seen_by_own[row]; rest != 0; rest &= rest - 1) {
        const int x = __ffsll(static_cast<long long>(rest)) - 1;
        const float weight = pair_.m.scores[row * kScoreStride + x] * factor;
#pragma unroll 1
        for (int e = 0; e < 16; ++e) {
          const int column = ColumnOf(e >> 1, e & 1), at = (e >> 1) * 4 + k * 2 + (e & 1);
          if (column < width) of[at] = fmaf(weight, value(row, x, column), of[at]);
        }
      }
    }
#pragma unroll
    for (int e = 0; e < 32; ++e) sums[e / 4][e % 4] = of[e];
  }

  // dq_rel: sums of dT r_delta.
  SIMT_FN void AddRelative(Fragment& sums, int c) const {
    const HeadRows r = HeadRows::Of(p.a.r, pair_.head().b, pair_.head().h);
    const auto value = [&](int row, int x, int column) {
      const int64_t delta = pair_.m.positions[row].DeltaTo(pair_.m.other_rows[x], p.a.L);
      return LoadFloat(r.data, r.dtype, r.At(delta) + c * kSide + column);
    };
    AddOneByOne(sums, 1, p.a.D - c * kSide, value);
  }

  // Gradients of the table and of r, from the tile of scores.
  SIMT_FN void AddSides(int terms, const Fragment& dscores) const {
    __syncthreads();
    if (has_table_ && terms >= 0) AddTable(pair_.head().pattern->terms[terms].labels);
    if (!has_dr_) return;
    if (wants_.early_scores) {
      __syncthreads();
      pair_.WriteScores(dscores);
      __syncthreads();
    }
    AddDistances();
  }
  // A thread for a row of queries.
  SIMT_FN void AddTable(const uint16_t* labels) const {
    if (labels == nullptr || threadIdx.x >= kSide) return;
    const int64_t row = pair_.m.own_rows[threadIdx.x];
    if (row < 0) return;
    const float factor = p.a.cap_table ? p.a.scale : 1;
    float* table = static_cast<float*>(p.dtable.data) +
                   p.dtable.Head(pair_.head().b, pair_.head().h) + row * p.dtable.row;
    for (uint64_t rest = pair_.m.seen_by_own[threadIdx.x]; rest != 0; rest &= rest - 1) {
      const int x = __ffsll(static_cast<long long>(rest)) - 1;
      const int label = labels[threadIdx.x * kSide + x];
      if (label == 65535) continue;
      table[label * p.dtable.column] += factor * pair_.m.scores[threadIdx.x * kScoreStride + x];
    }
  }
  // A thread for a column, at even distances or at odd ones. Along a diagonal of the tile, where
  // rows follow one another, the distance is one.
  SIMT_FN void AddDistances() const {
    const AttendHead& head = pair_.head();
    const HeadRows q_rel = HeadRows::Of(p.a.q_rel, head.b, head.h);
    float* sums = p.dr_sums + ((head.b * p.a.H + head.h) * p.query_shares + share_) * p.a.L * p.a.D;
    const int half = threadIdx.x / kSide;
    for (int c = threadIdx.x % kSide; c < p.a.D; c += kSide) {
      for (int diagonal = 1 - kSide; diagonal < kSide; ++diagonal) {
        int64_t last = -1;
        float sum = 0;
        const auto flush = [&] {
          if (last >= 0) sums[last * p.a.D + c] += sum;
          sum = 0;
        };
        for (int row = max(0, diagonal); row < min(kSide, kSide + diagonal); ++row) {
          const int x = row - diagonal;
          if ((pair_.m.seen_by_own[row] >> x & 1) == 0) continue;
          const int64_t delta = pair_.m.positions[row].DeltaTo(pair_.m.other_rows[x], p.a.L);
          if ((delta & 1) != half) continue;
          if (delta != last) {
            flush();
            last = delta;
          }
          const int64_t at = q_rel.At(pair_.m.own_rows[row]) + c;
          sum = fmaf(pair_.m.scores[row * kScoreStride + x], LoadFloat(q_rel.data, q_rel.dtype, at),
                     sum);
        }
        flush();
      }
    }
  }

  SIMT_FN bool IsFinite() const {
    bool finite = true;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) finite = finite && sums_[u][n][i] - sums_[u][n][i] == 0;
      }
    }
    return finite;
  }

  SIMT_FN void SetFactors(int64_t heads) {
    weight_factor_ = score_factor_ = 1;
    if constexpr (std::is_same_v<T, simt::f16>) {
      if (p.a.is_softmax()) weight_factor_ = kWeightFactor;
      const AttendHead& head = pair_.head();
      float size = 0;
      for (int64_t n = 0; n < heads; ++n) {
        size = fmaxf(size, p.head_sizes[head.b * p.a.H + head.h + n]);
      }
      score_factor_ = ScoreFactor(size);
    }
  }

  SIMT_FN void Store() {
    const AttendHead& head = pair_.head();
    constexpr bool kKeys = kPass == GradPass::kKeys;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int unit = Unit(u);
      if (unit >= units_) break;
      const bool second = unit >= first_;
      const int c = second ? unit - first_ : unit;
      const float factor = kKeys && second ? 1 / weight_factor_
                           : second        ? p.a.scale
                                           : p.a.scale / score_factor_;
      const int width = kKeys && second ? p.a.Dv : p.a.D;
      __syncthreads();
      pair_.WriteScores(sums_[u]);
      __syncthreads();
      if (kKeys && p.key_shares > 0) {
        AddKeys(second, c, width, factor);
      } else {
        StoreRows(kKeys ? (second ? p.dv : p.dk) : (second ? p.dq_rel : p.dq), c, width, factor);
      }
    }
    if constexpr (kTerms) {
      if (has_slopes_) StoreSlopes(head);
    }
  }
  SIMT_FN void StoreSlopes(const AttendHead& head) const {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      float sum = pair_.slope_sums[k];
      for (int flip = 1; flip < 4; flip *= 2) sum += __shfl_xor_sync(simt::kAllLanes, sum, flip);
      const int64_t row = pair_.m.own_rows[RowOf(k * 2)];
      if (threadIdx.x % 4 == 0 && row >= 0) {
        p.slope_sums[(head.b * p.a.H + head.h) * p.a.Nq + row] -= sum;
      }
    }
  }
  // In natural order all rows of the tile, which may see nothing.
  SIMT_FN void StoreRows(const Plane& to, int c, int width, float factor) const {
    const AttendHead& head = pair_.head();
    constexpr bool kKeys = kPass == GradPass::kKeys;
    const bool in_order = (kKeys ? head.key_rows : head.query_rows) == nullptr;
    const bool adds = RoundsOf(kPass, p) > 1;
    const int64_t rows = kKeys ? p.a.Nk : p.a.Nq;
    const int64_t begin = to.Head(head.b, kKeys ? head.kv : head.h) + c * kSide;
#pragma unroll 1
    for (int at = threadIdx.x; at < kSide * kSide; at += kGradThreads) {
      const int slot = at / kSide, column = at % kSide;
      const int64_t row = in_order ? pair_.own_tile * kSide + slot : pair_.m.own_rows[slot];
      if (row < 0 || row >= rows || c * kSide + column >= width) continue;
      const int64_t place = begin + row * to.row + column;
      const float before = adds ? LoadFloat(to.data, to.dtype, place) : 0.0f;
      const float sum = before + pair_.m.scores[slot * kScoreStride + column] * factor;
      StoreFloat(to.data, to.dtype, place, sum);
    }
  }
  // To the sums of rows, of which several slots may be one: a thread for a column, even rows or odd
  // ones, in the order of slots.
  SIMT_FN void AddKeys(bool second, int c, int width, float factor) const {
    const AttendHead& head = pair_.head();
    const int64_t rows = p.a.Nk + p.a.Nk2, kv_heads = p.a.H / p.a.group;
    float* to = (second ? p.dv_sums : p.dk_sums) +
                ((head.b * kv_heads + head.kv) * p.key_shares + share_) * rows * width;
    const int column = threadIdx.x % kSide, half = threadIdx.x / kSide;
    if (c * kSide + column >= width) return;
#pragma unroll 1
    for (int x = 0; x < kSide; ++x) {
      const int64_t row = pair_.m.own_rows[x];
      if (row < 0 || (row & 1) != half) continue;
      to[row * width + c * kSide + column] += pair_.m.scores[x * kScoreStride + column] * factor;
    }
  }

  const GradData& p;
  GradPair<T, kPass, kTerms> pair_;
  Fragment sums_[kUnits];
  const int first_, units_, part_;
  int share_ = 0;
  bool has_table_, has_dr_, has_slopes_, has_bias_;
  bool adds_from_tile_ = false;
  GradWants wants_;
  float weight_factor_ = 1, score_factor_ = 1;
};

}  // namespace attnd::cuda::attend_grad
