// What enters the scores beside q . k in the backward of attend, and the gradients of it.
#if defined(ATTND_CPU_ATTEND_GRAD_TERMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_ATTEND_GRAD_TERMS_INL_H_
#undef ATTND_CPU_ATTEND_GRAD_TERMS_INL_H_
#else
#define ATTND_CPU_ATTEND_GRAD_TERMS_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/attend/attend_grad_tile.h"
#include "kernels/cpu/attend/attend_operands-inl.h"
#include "kernels/cpu/attend/weighting-inl.h"
#include "kernels/cpu/simd/lane_mask-inl.h"
#include "kernels/cpu/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The terms of one sequence, for one pair of tiles at a time. In units of scores:
//   t = S + table[label],  x = cap tanh(t / cap),
//   s = x + bias + key_bias - slope distance,  dT = dS (1 - (x / cap)^2).
class GradTerms {
 public:
  GradTerms(const GradTask& task, int64_t b, const GradScratch& scratch)
      : task_(task),
        p_(task.problem->forward),
        seq_(task.Seq(b)),
        b_(b),
        m_(scratch),
        unit_(static_cast<float>(task.unit())),
        cap_(static_cast<float>(task.params.softcap * task.unit())) {}

  // From here on Weigh leaves dscores before the soft cap (dS), which is the gradient of a bias.
  void StopBeforeCap() { before_cap_ = true; }

  // Whether any pair has terms.
  bool given() const {
    const AttendTerms& t = p_.terms;
    return !task_.softmax() || cap_ != 0 || t.bias.given() || t.alibi_slopes.given() ||
           t.table.given();
  }
  // Turns S into P in scratch.weights, dP into dT in scratch.dscores. Clears the bits of `seen` at
  // pairs that a bias hides.
  void Weigh(const GradQueries& queries, const GradKeys& keys, const TileTerms* tile,
             uint64_t* seen);

  // Of the pair that was weighed last:
  bool hides() const { return hides_; }                  // a bias hid a pair
  double distance_sum() const { return distance_sum_; }  // of dS |p_i - p_j|
  // Adds to the gradients of table rows.
  void AddTable(const GradQueries& queries, const GradKeys& keys, const TileTerms* tile,
                const uint64_t* seen, const PartialRows& dtable) const;

 private:
  // The terms of one query. Null: not given.
  struct RowTerms {
    int64_t columns = 0;
    const float *key_bias = nullptr, *constants = nullptr, *bias = nullptr;
    const float* position = nullptr;  // of keys, relative to the tile: exact in float32
    float from = 0, slope = 0;        // position of the query
    uint64_t sees = 0;
  };
  void AddTableScores(const GradQueries& queries, const GradKeys& keys, const TileTerms& tile,
                      float factor, const Packed& to) const;
  const float* ReadBias(const GradQueries& queries, const GradKeys& keys, int64_t i,
                        float* values) const;
  uint64_t AddScores(const RowTerms& row, float* scores, float* keeps) const;
  uint64_t WeighRow(const GradQueries& queries, int64_t i, const RowTerms& row);

  const GradTask& task_;
  const AttendProblem& p_;
  const AttendSeq& seq_;
  const int64_t b_;
  const GradScratch& m_;
  const float unit_, cap_;
  bool before_cap_ = false, hides_ = false, adds_table_late_ = false;
  double distance_sum_ = 0;
};

inline void GradTerms::Weigh(const GradQueries& queries, const GradKeys& keys,
                             const TileTerms* tile, uint64_t* seen) {
  const int64_t columns = RoundUp(keys.slots.count, kLanes);
  const bool is_labelled = tile != nullptr && !tile->labels.empty() && p_.terms.table.given();
  adds_table_late_ = is_labelled && !task_.params.cap_table;
  if (is_labelled && !adds_table_late_) {
    const auto factor = static_cast<float>(task_.params.scale * task_.unit());
    AddTableScores(queries, keys, *tile, factor, m_.weights);
  }
  const bool has_bias = tile != nullptr && !tile->bias.empty();
  const bool has_constants = has_bias || adds_table_late_;
  if (has_bias) {
    Transpose(tile->bias.data(), kTile, kTile, kTile, m_.constants.data, m_.constants.stride);
  } else if (adds_table_late_) {
    Zero(m_.constants, kTile);
  }
  if (adds_table_late_) AddTableScores(queries, keys, *tile, 1.0f, m_.constants);
  const HeadRows slopes = HeadRows::Of(p_.terms.alibi_slopes, b_, queries.h);
  const int64_t origin = std::max<int32_t>(keys.slots.rows[0], 0);
  float position[kTile] = {}, bias[kTile] = {};
  for (int64_t x = 0; x < keys.slots.count; ++x) {
    position[x] = static_cast<float>(keys.slots.rows[x] - origin);
  }
  RowTerms row = {.columns = columns};
  if (keys.has_bias) row.key_bias = keys.bias;
  if (slopes.data != nullptr) {
    row.position = position;
    row.slope = slopes.Scalar(0) * unit_;
  }
  hides_ = false;
  distance_sum_ = 0;
  for (int64_t i = 0; i < queries.slots.count; ++i) {
    if (has_constants) row.constants = m_.constants.Row(i);
    if (p_.terms.bias.given() && seen[i] != 0) {
      row.bias = ReadBias(queries, keys, i, bias);
    }
    row.from = static_cast<float>(queries.slots.rows[i] + seq_.offset - origin);
    row.sees = seen[i];
    seen[i] = WeighRow(queries, i, row);
    hides_ = hides_ || seen[i] != row.sees;
  }
}

// x, then s. Returns the keys where the bias is not -inf, as bits.
inline uint64_t GradTerms::AddScores(const RowTerms& row, float* scores, float* keeps) const {
  const DF d;
  const VF cap = hn::Set(d, cap_), inverse_cap = hn::Set(d, cap_ == 0 ? 0 : 1 / cap_);
  const VF one = hn::Set(d, 1.0f), unit = hn::Set(d, unit_), from = hn::Set(d, row.from);
  uint64_t seen = 0;
  for (int64_t x = 0; x < row.columns; x += kLanes) {
    VF score = hn::LoadU(d, scores + x), keep = one;
    if (cap_ != 0) {
      const Capped capped = WithCap(score, inverse_cap, cap);
      keep = capped.slope;
      score = capped.x;
    }
    if (row.key_bias != nullptr) score = hn::Add(score, hn::LoadU(d, row.key_bias + x));
    if (row.constants != nullptr) {
      score = hn::MulAdd(unit, hn::LoadU(d, row.constants + x), score);
    }
    if (row.position != nullptr) {
      const VF distance = hn::Abs(hn::Sub(from, hn::LoadU(d, row.position + x)));
      // The slope in one part, unlike the forward's two: it moves P by as much as rounding s does.
      score = WithAlibi(score, distance, hn::Set(d, row.slope));
    }
    if (row.bias != nullptr) {
      const VF bias = hn::LoadU(d, row.bias + x);
      const VF hidden = hn::Set(d, -std::numeric_limits<float>::infinity());
      uint8_t bits[8] = {};
      hn::StoreMaskBits(d, hn::Ne(bias, hidden), bits);
      uint64_t word;
      std::memcpy(&word, bits, sizeof(word));
      seen |= word << x;
      score = WithBias(score, bias, unit);
    }
    hn::StoreU(score, d, scores + x);
    hn::StoreU(before_cap_ ? one : keep, d, keeps + x);
  }
  return row.bias == nullptr ? ~uint64_t{0} : seen;
}

// Invisible pairs become 0 by selection, whatever they hold. Returns the visible keys.
inline uint64_t GradTerms::WeighRow(const GradQueries& queries, int64_t i, const RowTerms& row) {
  const DF d;
  float *weights = m_.weights.Row(i), *dscores = m_.dscores.Row(i);
  float keeps[kTile], phi[kTile], derivative[kTile];  // keeps: dx / dt
  const uint64_t sees = row.sees & AddScores(row, weights, keeps);
  if (!task_.softmax()) PhiRow(task_.params.weighting, weights, row.columns, phi, derivative);
  const VF high = hn::Set(d, queries.lse_high[i]), low = hn::Set(d, queries.lse_low[i]);
  const VF shift = hn::Set(d, queries.shift[i]), factor = hn::Set(d, queries.factor[i]);
  const VF from = hn::Set(d, row.from);
  VF distance_sum = hn::Zero(d);
  for (int64_t x = 0; x < row.columns; x += kLanes) {
    const VF dp = hn::LoadU(d, dscores + x);
    VF weight, dscore;
    if (task_.softmax()) {
      // No weight is above 1, however far the rounding of a large lse is from it. NaN stays NaN.
      const VF exponent = hn::Sub(hn::Sub(hn::LoadU(d, weights + x), high), low);
      weight = Exp2Small(d, hn::Min(hn::Zero(d), exponent));
      dscore = hn::Mul(weight, hn::Sub(dp, shift));
    } else {
      weight = hn::Mul(factor, hn::LoadU(d, phi + x));
      dscore = hn::Mul(hn::Mul(factor, hn::LoadU(d, derivative + x)), dp);
    }
    const auto visible = LaneMask(sees >> x);
    weight = hn::IfThenElseZero(visible, weight);
    dscore = hn::IfThenElseZero(visible, dscore);
    if (row.position != nullptr) {
      const VF distance = hn::Abs(hn::Sub(from, hn::LoadU(d, row.position + x)));
      distance_sum = hn::MulAdd(dscore, distance, distance_sum);
    }
    const VF kept = hn::IfThenElseZero(visible, hn::Mul(dscore, hn::LoadU(d, keeps + x)));
    // The row of constants has been added to the scores, so its memory is free for dS.
    if (adds_table_late_) hn::StoreU(dscore, d, m_.constants.Row(i) + x);
    hn::StoreU(weight, d, weights + x);
    hn::StoreU(kept, d, dscores + x);
  }
  distance_sum_ += hn::GetLane(hn::SumOfLanes(d, distance_sum));
  return sees;
}

// A row of the bias, 0 for rows of k2: where it lies if that serves, else in `values`.
inline const float* GradTerms::ReadBias(const GradQueries& queries, const GradKeys& keys, int64_t i,
                                        float* values) const {
  const View& bias = p_.terms.bias;
  const int64_t size = SizeOf(bias.dtype);
  const char* row = bias.As<char>() + size * (b_ * bias.stride[0] + queries.h * bias.stride[1] +
                                              queries.slots.rows[i] * bias.stride[2]);
  const TileSlots& slots = keys.slots;
  if (slots.in_order && bias.stride[3] == 1 && slots.rows[0] + slots.count <= task_.Nk) {
    const char* const first = row + slots.rows[0] * size;
    if (bias.dtype == DType::kF32 && slots.count % kLanes == 0) {
      return reinterpret_cast<const float*>(first);
    }
    Widen(bias.dtype, first, slots.count, values);
    return values;
  }
  for (int64_t x = 0; x < slots.count; ++x) {
    const int64_t key = slots.rows[x];
    values[x] = 0;
    if (key < 0 || key >= task_.Nk) continue;
    Widen(bias.dtype, row + key * bias.stride[3] * size, 1, values + x);
  }
  return values;
}

inline void GradTerms::AddTableScores(const GradQueries& queries, const GradKeys& keys,
                                      const TileTerms& tile, float factor, const Packed& to) const {
  const HeadRows table = HeadRows::Of(p_.terms.table, b_, queries.h);
  for (int64_t i = 0; i < queries.slots.count; ++i) {
    if (queries.slots.rows[i] < 0) continue;
    const float* row = reinterpret_cast<const float*>(table.Row(queries.slots.rows[i]));
    float* scores = to.Row(i);
    for (int64_t x = 0; x < keys.slots.count; ++x) {
      const uint16_t label = tile.labels[x * kTile + i];
      if (label != TileTerms::kNoLabel) scores[x] += row[label] * factor;
    }
  }
}

inline void GradTerms::AddTable(const GradQueries& queries, const GradKeys& keys,
                                const TileTerms* tile, const uint64_t* seen,
                                const PartialRows& dtable) const {
  if (!dtable.wanted() || tile == nullptr || tile->labels.empty()) return;
  const Packed& dscores = adds_table_late_ ? m_.constants : m_.dscores;
  for (int64_t i = 0; i < queries.slots.count; ++i) {
    if (queries.slots.rows[i] < 0) continue;
    float* row = dtable.Open(queries.slots.rows[i]);
    for (uint64_t rest = seen[i]; rest != 0; rest &= rest - 1) {
      const int64_t x = std::countr_zero(rest);
      if (x >= keys.slots.count) break;
      const uint16_t label = tile->labels[x * kTile + i];
      if (label != TileTerms::kNoLabel) row[label] += dscores.Row(i)[x];
    }
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
