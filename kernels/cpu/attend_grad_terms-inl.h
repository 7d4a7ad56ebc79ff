// What enters the scores beside q . k in the backward of attend, and the gradients of it.
#if defined(ATTND_CPU_ATTEND_GRAD_TERMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_ATTEND_GRAD_TERMS_INL_H_
#undef ATTND_CPU_ATTEND_GRAD_TERMS_INL_H_
#else
#define ATTND_CPU_ATTEND_GRAD_TERMS_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/attend_grad_tile.h"
#include "kernels/cpu/attend_operands-inl.h"
#include "kernels/cpu/attend_weights-inl.h"
#include "kernels/cpu/lane_mask-inl.h"
#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The terms of one batch row, for one pair of tiles at a time. In units of scores:
//   t = S + table[label] + q_rel . r_delta,  x = cap tanh(t / cap),
//   s = x + bias + key_bias - slope distance,  dT = dS (1 - (x / cap)^2).
class ScoreTerms {
 public:
  ScoreTerms(const GradPlan& plan, int64_t b, const GradScratch& scratch)
      : plan_(plan),
        p_(plan.problem->forward),
        row_(plan.Row(b)),
        b_(b),
        m_(scratch),
        unit_(static_cast<float>(plan.unit())),
        cap_(static_cast<float>(plan.params.softcap * plan.unit())) {}

  // Dscores before the soft cap: what a bias gets. For the pairs to come.
  void StopBeforeCap() { before_cap_ = true; }

  // Whether any pair has terms.
  bool given() const {
    const AttendTerms& t = p_.terms;
    return !plan_.softmax() || cap_ != 0 || t.bias.given() || t.alibi_slopes.given() ||
           t.table.given() || t.r.given();
  }
  // scratch.weights: S to P; scratch.dscores: dP to dT. Takes the bits of pairs that a bias hides
  // out of `seen`.
  void Weigh(const GradQueries& queries, const GradKeys& keys, const TileTerms* tile,
             uint64_t* seen);

  // Of the pair that was weighed last:
  bool hides() const { return hides_; }            // a bias hid a pair
  bool non_finite() const { return non_finite_; }  // in the relative term, looked up if it has one
  double distance_sum() const { return distance_sum_; }  // of dS |p_i - p_j|
  // Adds to the gradients of table rows, and of q_rel and r. `exact`: visible pairs only.
  void AddTable(const GradQueries& queries, const GradKeys& keys, const TileTerms* tile,
                const uint64_t* seen, const PartialRows& dtable) const;
  void AddRelative(const GradQueries& queries, const GradKeys& keys, const uint64_t* seen,
                   bool exact, const PartialRows& dq_rel, const PartialRows& dr) const;

 private:
  float Position(const GradQueries& queries, int64_t i) const {
    return static_cast<float>(queries.slots.rows[i] + row_.offset - origin_);
  }
  int64_t Delta(const GradQueries& queries, int64_t i, int64_t key) const {
    return std::clamp<int64_t>(queries.slots.rows[i] + row_.offset - key, 0,
                               p_.terms.r.shape[2] - 1);
  }
  void AddTableScores(const GradQueries& queries, const GradKeys& keys, const TileTerms& tile);
  void AddRelativeScores(const GradQueries& queries, const GradKeys& keys, const uint64_t* seen);
  void LoadDiagonals(const GradQueries& queries, const GradKeys& keys);
  uint64_t ReadBias(const GradQueries& queries, const GradKeys& keys, int64_t i,
                    float* added) const;
  void WeighRow(const GradQueries& queries, int64_t i, const float* added, const float* distance,
                float slope, uint64_t sees, int64_t columns);

  const GradPlan& plan_;
  const AttendProblem& p_;
  const AttendRow& row_;
  const int64_t b_;
  const GradScratch& m_;
  const float unit_, cap_;
  bool before_cap_ = false, hides_ = false, non_finite_ = false;
  int64_t origin_ = 0;  // positions are taken relative to it: exact in float32
  double distance_sum_ = 0;
};

inline void ScoreTerms::Weigh(const GradQueries& queries, const GradKeys& keys,
                              const TileTerms* tile, uint64_t* seen) {
  const int64_t columns = RoundUpTo(keys.slots.count, kLanes);
  if (p_.terms.r.given()) AddRelativeScores(queries, keys, seen);
  if (tile != nullptr && !tile->labels.empty() && p_.terms.table.given()) {
    AddTableScores(queries, keys, *tile);
  }
  const HeadRows slopes = HeadRows::Of(p_.terms.alibi_slopes, b_, queries.h);
  const float slope = slopes.data == nullptr ? 0 : slopes.Scalar(0) * unit_;
  hides_ = false;
  distance_sum_ = 0;
  origin_ = std::max<int32_t>(keys.slots.rows[0], 0);
  float position[kTile] = {}, distance[kTile] = {}, added[kTile] = {};
  for (int64_t x = 0; x < keys.slots.count; ++x) {
    position[x] = static_cast<float>(keys.slots.rows[x] - origin_);
  }
  for (int64_t i = 0; i < queries.slots.count; ++i) {
    for (int64_t x = 0; x < keys.slots.count; ++x) {
      added[x] = keys.has_bias ? keys.bias[x] : 0.0f;
      if (tile != nullptr && !tile->bias.empty()) added[x] += tile->bias[x * kTile + i] * unit_;
    }
    if (p_.terms.bias.given() && seen[i] != 0) {
      const uint64_t hidden = ReadBias(queries, keys, i, added);
      hides_ = hides_ || (seen[i] & hidden) != 0;
      seen[i] &= ~hidden;
    }
    if (slopes.data != nullptr) {
      const float from = Position(queries, i);
      for (int64_t x = 0; x < columns; ++x) distance[x] = std::abs(from - position[x]);
    }
    WeighRow(queries, i, added, distance, slope, seen[i], columns);
  }
}

// Selects, so that whatever an invisible pair computed is gone.
inline void ScoreTerms::WeighRow(const GradQueries& queries, int64_t i, const float* added,
                                 const float* distance, float slope, uint64_t sees,
                                 int64_t columns) {
  const DF d;
  float *weights = m_.weights.Row(i), *dscores = m_.dscores.Row(i);
  float keeps[kTile], phi[kTile], derivative[kTile];  // keeps: dx / dt
  const VF cap = hn::Set(d, cap_), inverse_cap = hn::Set(d, cap_ == 0 ? 0 : 1 / cap_);
  const VF one = hn::Set(d, 1.0f), minus_slope = hn::Set(d, -slope);
  for (int64_t x = 0; x < columns; x += kLanes) {
    VF score = hn::LoadU(d, weights + x), keep = one;
    if (cap_ != 0) {
      const VF tanh = attend_internal::Tanh(hn::Mul(score, inverse_cap));
      keep = hn::NegMulAdd(tanh, tanh, one);
      score = hn::Mul(cap, tanh);
    }
    score = hn::Add(score, hn::LoadU(d, added + x));
    score = hn::MulAdd(minus_slope, hn::LoadU(d, distance + x), score);
    hn::StoreU(score, d, weights + x);
    hn::StoreU(before_cap_ ? one : keep, d, keeps + x);
  }
  if (!plan_.softmax()) PhiRow(plan_.params.weighting, weights, columns, phi, derivative);
  const VF high = hn::Set(d, queries.lse_high[i]), low = hn::Set(d, queries.lse_low[i]);
  const VF shift = hn::Set(d, queries.shift[i]), factor = hn::Set(d, queries.factor[i]);
  VF distance_sum = hn::Zero(d);
  for (int64_t x = 0; x < columns; x += kLanes) {
    const VF dp = hn::LoadU(d, dscores + x);
    VF weight, dscore;
    if (plan_.softmax()) {
      weight = Exp2Small(d, hn::Sub(hn::Sub(hn::LoadU(d, weights + x), high), low));
      dscore = hn::Mul(weight, hn::Sub(dp, shift));
    } else {
      weight = hn::Mul(factor, hn::LoadU(d, phi + x));
      dscore = hn::Mul(hn::Mul(factor, hn::LoadU(d, derivative + x)), dp);
    }
    const auto visible = LaneMask(sees >> x);
    weight = hn::IfThenElseZero(visible, weight);
    dscore = hn::IfThenElseZero(visible, dscore);
    distance_sum = hn::MulAdd(dscore, hn::LoadU(d, distance + x), distance_sum);
    const VF kept = hn::IfThenElseZero(visible, hn::Mul(dscore, hn::LoadU(d, keeps + x)));
    hn::StoreU(weight, d, weights + x);
    hn::StoreU(kept, d, dscores + x);
  }
  distance_sum_ += hn::GetLane(hn::SumOfLanes(d, distance_sum));
}

// Adds a row of the bias; the keys where it is -inf come back as bits. Rows of k2 have none.
inline uint64_t ScoreTerms::ReadBias(const GradQueries& queries, const GradKeys& keys, int64_t i,
                                     float* added) const {
  const View& bias = p_.terms.bias;
  const int64_t size = SizeOf(bias.dtype);
  const char* row = bias.As<char>() + size * (b_ * bias.stride[0] + queries.h * bias.stride[1] +
                                              queries.slots.rows[i] * bias.stride[2]);
  float values[kTile] = {};
  const TileSlots& slots = keys.slots;
  if (slots.in_order && bias.stride[3] == 1 && slots.rows[0] + slots.count <= plan_.Nk) {
    Widen(bias.dtype, row + slots.rows[0] * size, slots.count, values);
  } else {
    for (int64_t x = 0; x < slots.count; ++x) {
      const int64_t key = slots.rows[x];
      if (key < 0 || key >= plan_.Nk) continue;
      Widen(bias.dtype, row + key * bias.stride[3] * size, 1, values + x);
    }
  }
  uint64_t hidden = 0;
  for (int64_t x = 0; x < slots.count; ++x) {
    if (values[x] == -std::numeric_limits<float>::infinity()) hidden |= uint64_t{1} << x;
    added[x] += values[x] * unit_;
  }
  return hidden;
}

inline void ScoreTerms::AddTableScores(const GradQueries& queries, const GradKeys& keys,
                                       const TileTerms& tile) {
  const HeadRows table = HeadRows::Of(p_.terms.table, b_, queries.h);
  const float factor = static_cast<float>(plan_.params.scale * plan_.unit());
  for (int64_t i = 0; i < queries.slots.count; ++i) {
    if (queries.slots.rows[i] < 0) continue;
    const float* row = reinterpret_cast<const float*>(table.Row(queries.slots.rows[i]));
    float* scores = m_.weights.Row(i);
    for (int64_t x = 0; x < keys.slots.count; ++x) {
      const uint16_t label = tile.labels[x * kTile + i];
      if (label != TileTerms::kNoLabel) scores[x] += row[label] * factor;
    }
  }
}

inline void ScoreTerms::AddTable(const GradQueries& queries, const GradKeys& keys,
                                 const TileTerms* tile, const uint64_t* seen,
                                 const PartialRows& dtable) const {
  if (!dtable.wanted() || tile == nullptr || tile->labels.empty()) return;
  for (int64_t i = 0; i < queries.slots.count; ++i) {
    if (queries.slots.rows[i] < 0) continue;
    float* row = dtable.Open(queries.slots.rows[i]);
    for (uint64_t rest = seen[i]; rest != 0; rest &= rest - 1) {
      const int64_t x = std::countr_zero(rest);
      if (x >= keys.slots.count) break;
      const uint16_t label = tile->labels[x * kTile + i];
      if (label != TileTerms::kNoLabel) row[label] += m_.dscores.Row(i)[x];
    }
  }
}

// Rows of r that tiles in order need: row u belongs to the diagonal key - query = u - 63.
inline void ScoreTerms::LoadDiagonals(const GradQueries& queries, const GradKeys& keys) {
  const HeadRows r = HeadRows::Of(p_.terms.r, b_, queries.h);
  for (int64_t u = 0; u < 2 * kTile; ++u) {
    const int64_t delta = Delta(queries, 0, keys.slots.rows[0] + u - (kTile - 1));
    PackRow(r, delta, 1.0f, m_.r, u);
  }
  Transpose(m_.r.data, m_.r.stride, 2 * kTile, plan_.D, m_.rt.data, m_.rt.stride);
}

inline void ScoreTerms::AddRelativeScores(const GradQueries& queries, const GradKeys& keys,
                                          const uint64_t* seen) {
  const int64_t rows = queries.slots.count;
  Finiteness look_up;
  if (queries.slots.in_order && keys.slots.in_order) {
    LoadDiagonals(queries, keys);
    Gemm<Start::kZero>(rows, 2 * kTile, plan_.D, ByRow(m_.q_rel), AsRows(m_.rt),
                       Mutable(m_.diagonals));
    for (int64_t i = 0; i < rows; ++i) {
      float* scores = m_.weights.Row(i);
      const float* relative = m_.diagonals.Row(i) + kTile - 1 - i;
      for (int64_t x = 0; x < keys.slots.count; ++x) scores[x] += relative[x];
    }
    non_finite_ = look_up.HasNonFinite(m_.r, Packed(), 2 * kTile);
  } else {
    const HeadRows r = HeadRows::Of(p_.terms.r, b_, queries.h);
    for (int64_t i = 0; i < rows; ++i) {
      for (uint64_t rest = seen[i] & keys.slots.exists; rest != 0; rest &= rest - 1) {
        const int64_t x = std::countr_zero(rest);
        m_.weights.Row(i)[x] +=
            Dot(r, Delta(queries, i, keys.slots.rows[x]), m_.q_rel.Row(i), plan_.D, m_.space.data);
      }
    }
    non_finite_ = false;
  }
  Finiteness of_queries;
  non_finite_ = non_finite_ || of_queries.HasNonFinite(m_.q_rel, Packed(), rows);
}

inline void ScoreTerms::AddRelative(const GradQueries& queries, const GradKeys& keys,
                                    const uint64_t* seen, bool exact, const PartialRows& dq_rel,
                                    const PartialRows& dr) const {
  const DF d;
  const int64_t rows = queries.slots.count, vectors = Vectors(m_.q_rel);
  const auto add = [&](float factor, const float* from, float* to) HWY_ATTR {
    for (int64_t x = 0; x < vectors; x += kLanes) {
      hn::StoreU(hn::MulAdd(hn::Set(d, factor), hn::LoadU(d, from + x), hn::LoadU(d, to + x)), d,
                 to + x);
    }
  };
  if (!exact && queries.slots.in_order && keys.slots.in_order) {
    Zero(m_.diagonals, rows);
    for (int64_t i = 0; i < rows; ++i) {
      std::copy_n(m_.dscores.Row(i), keys.slots.count, m_.diagonals.Row(i) + kTile - 1 - i);
    }
    if (dq_rel.wanted()) {
      Gemm<Start::kZero>(rows, vectors, 2 * kTile, ByRow(m_.diagonals), AsRows(m_.r),
                         Mutable(m_.dq_rel));
      for (int64_t i = 0; i < rows; ++i) {
        add(1.0f, m_.dq_rel.Row(i), dq_rel.Open(queries.slots.rows[i]));
      }
    }
    if (!dr.wanted()) return;
    Gemm<Start::kZero>(2 * kTile, vectors, rows, ByColumn(m_.diagonals), AsRows(m_.q_rel),
                       Mutable(m_.dr));
    for (int64_t u = 0; u < kTile - 1 + keys.slots.count; ++u) {
      const int64_t key = keys.slots.rows[0] + u - (kTile - 1);
      add(1.0f, m_.dr.Row(u), dr.Open(Delta(queries, 0, key)));
    }
    return;
  }
  const HeadRows r = HeadRows::Of(p_.terms.r, b_, queries.h);
  for (int64_t i = 0; i < rows; ++i) {
    for (uint64_t rest = seen[i]; rest != 0; rest &= rest - 1) {
      const int64_t x = std::countr_zero(rest);
      if (x >= keys.slots.count) break;
      const int64_t delta = Delta(queries, i, keys.slots.rows[x]);
      const float dscore = m_.dscores.Row(i)[x];
      PackRow(r, delta, 1.0f, m_.dq_rel, 0);
      if (dq_rel.wanted()) add(dscore, m_.dq_rel.Row(0), dq_rel.Open(queries.slots.rows[i]));
      if (dr.wanted()) add(dscore, m_.q_rel.Row(i), dr.Open(delta));
    }
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
