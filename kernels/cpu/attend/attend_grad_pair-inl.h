// A tile of queries and a tile of keys of one head in the backward of attend, keys in lanes: packed
// operands, and from them the weights P and the score gradients dS.
#if defined(ATTND_CPU_ATTEND_GRAD_PAIR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_ATTEND_GRAD_PAIR_INL_H_
#undef ATTND_CPU_ATTEND_GRAD_PAIR_INL_H_
#else
#define ATTND_CPU_ATTEND_GRAD_PAIR_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/attend/attend_grad_relative-inl.h"
#include "kernels/cpu/attend/attend_grad_terms-inl.h"
#include "kernels/cpu/attend/attend_grad_tile.h"
#include "kernels/cpu/attend/attend_operands-inl.h"
#include "kernels/cpu/simd/convert-inl.h"
#include "kernels/cpu/simd/gemm-inl.h"
#include "kernels/cpu/simd/lane_mask-inl.h"
#include "kernels/cpu/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Packs tiles of one sequence and weighs pairs of them:
//   S = Q K^T, dP = dO V^T, P = e^(S - lse - lse_low), dS = P (dP - delta + dlse).
// S has the bits that the forward found: products in one order, then terms in one order.
class PairOfTiles {
 public:
  PairOfTiles(const GradTask& task, int64_t b, const GradScratch& scratch)
      : task_(task),
        grad_(*task.problem),
        p_(grad_.forward),
        seq_(task.Seq(b)),
        b_(b),
        m_(scratch),
        has_dout_(grad_.dout.given()),
        scale_(static_cast<float>(task.params.scale)),
        terms_(task, b, scratch),
        relative_(task, b, scratch) {}

  void LoadKeys(int64_t kv_head, const Pattern* pattern, int64_t tile, GradKeys* keys) const;
  // Heads of a group may differ in it.
  void LoadKeyBias(const Pattern* pattern, int64_t tile, GradKeys* keys) const;
  void LoadQueries(int64_t h, const Pattern* pattern, int64_t tile, GradQueries* queries) const;
  // Writes P to scratch.weights and dT to scratch.dscores, both 0 at invisible pairs. Returns
  // whether a product with them could give NaN at invisible pairs. `follows`: as in GradRelative.
  bool Weigh(GradQueries* queries, GradKeys* keys, const VisibleTile& tile, bool follows = false);

  GradTerms& terms() { return terms_; }
  GradRelative& relative() { return relative_; }
  const uint64_t* seen() const { return seen_; }  // bit x of word i: query i sees key x
  // Of the pair that was weighed last: the ranges that hold all visible pairs.
  const SeenByStrips& seen_by_queries() const { return seen_by_queries_; }
  const SeenByStrips& seen_by_keys() const { return seen_by_keys_; }
  bool has_dout() const { return has_dout_; }

 private:
  void LoadRowTerms(GradQueries* queries) const;
  void FindSeen(const GradQueries& queries, const GradKeys& keys, const TileMask* mask);
  void SeeAll(int64_t queries, int64_t keys);
  void FindStrips(int64_t queries, int64_t keys);
  template <Start kStart>
  void Multiply(int64_t rows, int64_t columns, int64_t width, const Packed& left,
                const Packed& right, const Packed& product) const;
  template <bool kMasked>
  void WeighPlain(const GradQueries& queries, int64_t columns);

  const GradTask& task_;
  const AttendGradProblem& grad_;
  const AttendProblem& p_;
  const AttendSeq& seq_;
  const int64_t b_;
  const GradScratch& m_;
  const bool has_dout_;
  const float scale_;
  GradTerms terms_;
  GradRelative relative_;
  uint64_t seen_[kTile];
  SeenByStrips seen_by_queries_, seen_by_keys_;
};

inline void PairOfTiles::LoadKeys(int64_t kv_head, const Pattern* pattern, int64_t tile,
                                  GradKeys* keys) const {
  TileSlots& slots = keys->slots;
  slots.Set(pattern == nullptr ? nullptr : &pattern->key_rows, seq_.nk, tile);
  if (slots.count == 0) return;
  const HeadRows k = HeadRows::Of(p_.k, b_, kv_head), v = HeadRows::Of(p_.v, b_, kv_head);
  const HeadRows k2 = HeadRows::Of(p_.terms.k2, b_, kv_head);
  const HeadRows v2 = HeadRows::Of(p_.terms.v2, b_, kv_head);
  const bool needs_v = has_dout_ && task_.needs_scores;
  const Packed values = {m_.space.data, PackedStride(task_.Dv), task_.Dv};
  for (int64_t i = 0; i < kTile; ++i) {
    if (i >= slots.count || slots.rows[i] < 0) {
      std::fill_n(keys->m.k.Row(i), Vectors(keys->m.k), 0.0f);
      if (needs_v) std::fill_n(values.Row(i), Vectors(values), 0.0f);
      continue;
    }
    const int64_t row = slots.rows[i];
    const bool second = row >= task_.Nk;
    PackRow(second ? k2 : k, second ? row - task_.Nk : row, 1.0f, keys->m.k, i);
    if (needs_v) PackRow(second ? v2 : v, second ? row - task_.Nk : row, 1.0f, values, i);
  }
  Transpose(keys->m.k.data, keys->m.k.stride, kTile, task_.D, keys->m.kt.data, keys->m.kt.stride);
  if (needs_v) {
    Transpose(values.data, values.stride, kTile, task_.Dv, keys->m.vt.data, keys->m.vt.stride);
  }
  keys->finiteness.Forget();
}

inline void PairOfTiles::LoadKeyBias(const Pattern* pattern, int64_t tile, GradKeys* keys) const {
  keys->has_bias = pattern != nullptr && !pattern->key_bias.empty();
  for (int64_t i = 0; keys->has_bias && i < keys->slots.count; ++i) {
    keys->bias[i] = pattern->key_bias[tile * kTile + i];
  }
}

inline void PairOfTiles::LoadQueries(int64_t h, const Pattern* pattern, int64_t tile,
                                     GradQueries* queries) const {
  queries->q = m_.q;
  queries->dout = has_dout_ ? m_.dout : Packed();
  queries->q_rel = m_.q_rel;
  queries->h = h;
  TileSlots& slots = queries->slots;
  slots.Set(pattern == nullptr ? nullptr : &pattern->query_rows, seq_.nq, tile);
  const HeadRows q = HeadRows::Of(p_.q, b_, h), dout = HeadRows::Of(grad_.dout, b_, h);
  const HeadRows q_rel = HeadRows::Of(p_.terms.q_rel, b_, h);
  for (int64_t i = 0; i < slots.count; ++i) {
    const int64_t row = slots.rows[i];
    if (row < 0) {
      std::fill_n(m_.q.Row(i), Vectors(m_.q), 0.0f);
      if (has_dout_) std::fill_n(m_.dout.Row(i), Vectors(m_.dout), 0.0f);
      if (q_rel.data != nullptr) std::fill_n(m_.q_rel.Row(i), Vectors(m_.q_rel), 0.0f);
      continue;
    }
    // Scaled as in the forward.
    PackRow(q, row, scale_, m_.q, i);
    if (has_dout_) PackRow(dout, row, 1.0f, m_.dout, i);
    if (q_rel.data != nullptr) PackRow(q_rel, row, scale_, m_.q_rel, i);
  }
  LoadRowTerms(queries);
  queries->finiteness.Forget();
}

// Rows that saw no key are skipped.
inline void PairOfTiles::LoadRowTerms(GradQueries* queries) const {
  const HeadRows lse = HeadRows::Of(p_.lse, b_, queries->h);
  const HeadRows lse_low = HeadRows::Of(p_.lse_low, b_, queries->h);
  const HeadRows dlse = HeadRows::Of(grad_.dlse, b_, queries->h);
  const HeadRows out = HeadRows::Of(p_.out, b_, queries->h);
  const HeadRows weight = HeadRows::Of(p_.terms.row_weight, b_, queries->h);
  TileSlots& slots = queries->slots;
  for (int64_t i = 0; i < slots.count; ++i) {
    queries->shift[i] = queries->lse[i] = queries->lse_low[i] = 0;
    queries->factor[i] = 1;
    if (slots.rows[i] < 0) continue;
    if (!task_.softmax()) {
      if (weight.data != nullptr) queries->factor[i] = weight.Scalar(slots.rows[i]);
      continue;
    }
    const float log_sum = lse.Scalar(slots.rows[i]);
    if (log_sum == -std::numeric_limits<float>::infinity()) {
      slots.exists &= ~(uint64_t{1} << i);
      continue;
    }
    queries->lse[i] = log_sum;
    if (lse_low.data != nullptr) queries->lse_low[i] = lse_low.Scalar(slots.rows[i]);
    if (has_dout_ && task_.needs_scores) {
      queries->shift[i] = Dot(out, slots.rows[i], m_.dout.Row(i), task_.Dv, m_.space.data);
    }
    if (dlse.data != nullptr) queries->shift[i] -= dlse.Scalar(slots.rows[i]);
  }
}

inline void PairOfTiles::FindSeen(const GradQueries& queries, const GradKeys& keys,
                                  const TileMask* mask) {
  if (mask != nullptr) TransposeMask(*mask, seen_);
  for (int64_t i = 0; i < queries.slots.count; ++i) {
    const bool exists = (queries.slots.exists >> i & 1) != 0;
    const uint64_t keys_seen = mask == nullptr ? ~uint64_t{0} : seen_[i];
    seen_[i] = exists ? keys_seen & keys.slots.exists : 0;
  }
}

inline void PairOfTiles::SeeAll(int64_t queries, int64_t keys) {
  std::fill_n(seen_by_queries_.of, kGradStrips, SlotRange{0, keys});
  std::fill_n(seen_by_keys_.of, kGradStrips, SlotRange{0, queries});
}

// From seen_.
inline void PairOfTiles::FindStrips(int64_t queries, int64_t keys) {
  int64_t pairs = 0;
  for (int64_t s = 0; s < kGradStrips; ++s) {
    const int64_t first = s * kGradStrip, end = std::min(first + kGradStrip, queries);
    uint64_t word = 0;
    for (int64_t i = first; i < end; ++i) word |= seen_[i];
    SlotRange range;
    if (word != 0) range = {std::countr_zero(word), kTile - std::countl_zero(word)};
    seen_by_queries_.of[s] = range;
    if (word != 0) pairs += range.size() * (end - first);
  }
  // One product is a little faster than several.
  if (pairs * 8 >= queries * keys * 7) return SeeAll(queries, keys);
  for (int64_t s = 0; s < kGradStrips; ++s) {
    const uint64_t strip = ((uint64_t{1} << kGradStrip) - 1) << (s * kGradStrip);
    SlotRange range = {0, queries};
    while (range.size() > 0 && (seen_[range.begin] & strip) == 0) ++range.begin;
    while (range.size() > 0 && (seen_[range.end - 1] & strip) == 0) --range.end;
    seen_by_keys_.of[s] = range;
  }
}

// left [rows][width] times right [width][columns], where strips of queries see something.
template <Start kStart>
void PairOfTiles::Multiply(int64_t rows, int64_t columns, int64_t width, const Packed& left,
                           const Packed& right, const Packed& product) const {
  seen_by_queries_.ForEach(rows, [&](SlotRange queries, SlotRange keys) HWY_ATTR {
    keys = WholeVectors(keys, columns);
    Gemm<kStart>(queries.size(), keys.size(), width, ByRow(From(left, queries.begin, 0)),
                 AsRows(From(right, 0, keys.begin)),
                 Mutable(From(product, queries.begin, keys.begin)));
  });
}

inline bool PairOfTiles::Weigh(GradQueries* queries, GradKeys* keys, const VisibleTile& tile,
                               bool follows) {
  const int64_t rows = queries->slots.count;
  const int64_t columns = RoundUp(keys->slots.count, kLanes);
  const bool has_terms = terms_.given() || tile.terms != nullptr || keys->has_bias;
  const bool all_seen = tile.mask == nullptr && keys->slots.exists == keys->slots.all() &&
                        queries->slots.exists == queries->slots.all();
  if (!all_seen || has_terms || relative_.given()) FindSeen(*queries, *keys, tile.mask);
  if (all_seen) {
    SeeAll(rows, keys->slots.count);
  } else {
    FindStrips(rows, keys->slots.count);
  }
  if (relative_.given()) {
    relative_.Load(*queries, *keys, seen_, seen_by_queries_, follows);
    Multiply<Start::kAddLast>(rows, columns, task_.D, m_.q, keys->m.kt, m_.weights);
  } else {
    Multiply<Start::kZero>(rows, columns, task_.D, m_.q, keys->m.kt, m_.weights);
  }
  if (!has_dout_ || !task_.needs_scores) {
    Zero(m_.dscores, rows);
  } else {
    Multiply<Start::kZero>(rows, columns, task_.Dv, m_.dout, keys->m.vt, m_.dscores);
  }
  if (all_seen && !has_terms) {
    WeighPlain</*kMasked=*/false>(*queries, columns);
    return false;
  }
  if (has_terms) {
    terms_.Weigh(*queries, *keys, tile.terms, seen_);
  } else {
    WeighPlain</*kMasked=*/true>(*queries, columns);
  }
  if (all_seen && !terms_.hides()) return false;
  return keys->finiteness.HasNonFinite(keys->m.k, Packed(), keys->slots.count) ||
         queries->finiteness.HasNonFinite(queries->q, queries->dout, rows);
}

// S and dP to P and dS. Selects, so that whatever an invisible pair computed is gone.
template <bool kMasked>
HWY_INLINE void PairOfTiles::WeighPlain(const GradQueries& queries, int64_t columns) {
  const DF d;
  for (int64_t i = 0; i < queries.slots.count; ++i) {
    const VF lse = hn::Set(d, queries.lse[i]), low = hn::Set(d, queries.lse_low[i]);
    const VF shift = hn::Set(d, queries.shift[i]);
    float *weights = m_.weights.Row(i), *dscores = m_.dscores.Row(i);
    SlotRange keys = {0, columns};
    if constexpr (kMasked) {
      keys = WholeVectors(seen_by_queries_.of[i / kGradStrip], columns);
      for (float* hidden : {weights, dscores}) {
        std::fill(hidden, hidden + keys.begin, 0.0f);
        std::fill(hidden + keys.end, hidden + columns, 0.0f);
      }
    }
    for (int64_t x = keys.begin; x < keys.end; x += kLanes) {
      VF weight = ExpWeight(d, hn::Sub(hn::Sub(hn::LoadU(d, weights + x), lse), low));
      VF dscore = hn::Mul(weight, hn::Sub(hn::LoadU(d, dscores + x), shift));
      if constexpr (kMasked) {
        const auto sees = LaneMask(seen_[i] >> x);
        weight = hn::IfThenElseZero(sees, weight);
        dscore = hn::IfThenElseZero(sees, dscore);
      }
      hn::StoreU(weight, d, weights + x);
      hn::StoreU(dscore, d, dscores + x);
    }
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
