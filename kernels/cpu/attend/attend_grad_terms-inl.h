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

// The terms of one sequence, for one pair of tiles at a time, in the order of ScoreTerms::Apply:
//   t = S + scale table[label],  x = cap tanh(t / cap),
//   s = x + table[label] - slope distance + key_bias + constants + bias,  dT = dS (1 - (x /
//   cap)^2).
class GradTerms {
 public:
  GradTerms(const GradTask& task, int64_t b, const GradScratch& scratch)
      : task_(task),
        p_(task.problem->forward),
        seq_(task.Seq(b)),
        b_(b),
        m_(scratch),
        cap_(static_cast<float>(task.params.softcap)) {}

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
    const float *key_bias = nullptr, *constants = nullptr, *late_table = nullptr, *bias = nullptr;
    const int32_t* key_rows = nullptr;  // with ALiBi
    CutPosition position{0};            // of the query
    float slope = 0;
    uint64_t sees = 0;

    VF Distance(int64_t x) const {
      const hn::RebindToSigned<DF> di;
      return AlibiDistance(hn::Set(di, position.cut), hn::LoadU(di, key_rows + x),
                           hn::Set(DF(), position.beyond));
    }
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
  const float cap_;
  bool before_cap_ = false, hides_ = false, adds_table_late_ = false;
  double distance_sum_ = 0;
};

inline void GradTerms::Weigh(const GradQueries& queries, const GradKeys& keys,
                             const TileTerms* tile, uint64_t* seen) {
  const int64_t columns = RoundUp(keys.slots.count, kLanes);
  const bool is_labelled = tile != nullptr && !tile->labels.empty() && p_.terms.table.given();
  adds_table_late_ = is_labelled && !task_.params.cap_table;
  if (is_labelled && !adds_table_late_) {
    AddTableScores(queries, keys, *tile, static_cast<float>(task_.params.scale), m_.weights);
  }
  const bool has_constants = tile != nullptr && !tile->bias.empty();
  if (has_constants) {
    Transpose(tile->bias.data(), kTile, kTile, kTile, m_.constants.data, m_.constants.stride);
  }
  if (adds_table_late_) {
    Zero(m_.late_table, kTile);
    AddTableScores(queries, keys, *tile, 1.0f, m_.late_table);
  }
  const HeadRows slopes = HeadRows::Of(p_.terms.alibi_slopes, b_, queries.h);
  int32_t key_rows[kTile] = {};
  std::copy_n(keys.slots.rows, keys.slots.count, key_rows);
  float bias[kTile] = {};
  RowTerms row = {.columns = columns};
  if (keys.has_bias) row.key_bias = keys.bias;
  if (slopes.data != nullptr) {
    row.key_rows = key_rows;
    row.slope = slopes.Scalar(0);
  }
  hides_ = false;
  distance_sum_ = 0;
  for (int64_t i = 0; i < queries.slots.count; ++i) {
    if (has_constants) row.constants = m_.constants.Row(i);
    if (adds_table_late_) row.late_table = m_.late_table.Row(i);
    if (p_.terms.bias.given() && seen[i] != 0) {
      row.bias = ReadBias(queries, keys, i, bias);
    }
    row.position = CutPosition(queries.slots.rows[i] + seq_.offset);
    row.sees = seen[i];
    seen[i] = WeighRow(queries, i, row);
    hides_ = hides_ || seen[i] != row.sees;
  }
}

// x, then s. Returns the keys where the bias is not -inf, as bits.
inline uint64_t GradTerms::AddScores(const RowTerms& row, float* scores, float* keeps) const {
  const DF d;
  const VF cap = hn::Set(d, cap_), inverse_cap = hn::Set(d, cap_ == 0 ? 0 : 1 / cap_);
  const VF one = hn::Set(d, 1.0f);
  uint64_t seen = 0;
  for (int64_t x = 0; x < row.columns; x += kLanes) {
    VF score = hn::LoadU(d, scores + x), keep = one;
    if (cap_ != 0) {
      const Capped capped = WithCap(score, inverse_cap, cap);
      keep = capped.slope;
      score = capped.x;
    }
    if (row.late_table != nullptr) score = hn::Add(score, hn::LoadU(d, row.late_table + x));
    if (row.key_rows != nullptr) {
      score = WithAlibi(score, row.Distance(x), hn::Set(d, row.slope));
    }
    if (row.key_bias != nullptr) score = hn::Add(score, hn::LoadU(d, row.key_bias + x));
    if (row.constants != nullptr) score = hn::Add(score, hn::LoadU(d, row.constants + x));
    if (row.bias != nullptr) {
      const VF bias = hn::LoadU(d, row.bias + x);
      const VF hidden = hn::Set(d, -std::numeric_limits<float>::infinity());
      uint8_t bits[8] = {};
      hn::StoreMaskBits(d, hn::Ne(bias, hidden), bits);
      uint64_t word;
      std::memcpy(&word, bits, sizeof(word));
      seen |= word << x;
      score = WithBias(score, bias);
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
  const VF lse = hn::Set(d, queries.lse[i]), low = hn::Set(d, queries.lse_low[i]);
  const VF shift = hn::Set(d, queries.shift[i]), factor = hn::Set(d, queries.factor[i]);
  VF distance_sum = hn::Zero(d);
  for (int64_t x = 0; x < row.columns; x += kLanes) {
    const VF dp = hn::LoadU(d, dscores + x);
    VF weight, dscore;
    if (task_.softmax()) {
      weight = ExpWeight(d, hn::Sub(hn::Sub(hn::LoadU(d, weights + x), lse), low));
      dscore = hn::Mul(weight, hn::Sub(dp, shift));
    } else {
      weight = hn::Mul(factor, hn::LoadU(d, phi + x));
      dscore = hn::Mul(hn::Mul(factor, hn::LoadU(d, derivative + x)), dp);
    }
    const auto visible = LaneMask(sees >> x);
    weight = hn::IfThenElseZero(visible, weight);
    dscore = hn::IfThenElseZero(visible, dscore);
    if (row.key_rows != nullptr) {
      distance_sum = hn::MulAdd(dscore, row.Distance(x), distance_sum);
    }
    const VF kept = hn::IfThenElseZero(visible, hn::Mul(dscore, hn::LoadU(d, keeps + x)));
    // The row of the table has been added to the scores, so its memory is free for dS.
    if (adds_table_late_) hn::StoreU(dscore, d, m_.late_table.Row(i) + x);
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
      if (label != TileTerms::kNoLabel) scores[x] = WithLabelled(scores[x], row[label], factor);
    }
  }
}

inline void GradTerms::AddTable(const GradQueries& queries, const GradKeys& keys,
                                const TileTerms* tile, const uint64_t* seen,
                                const PartialRows& dtable) const {
  if (!dtable.wanted() || tile == nullptr || tile->labels.empty()) return;
  const Packed& dscores = adds_table_late_ ? m_.late_table : m_.dscores;
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
