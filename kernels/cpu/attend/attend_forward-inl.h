// Some tiles of queries against their visible keys: what they store, and how they take turns.
#if defined(ATTND_CPU_ATTEND_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_ATTEND_FORWARD_INL_H_
#undef ATTND_CPU_ATTEND_FORWARD_INL_H_
#else
#define ATTND_CPU_ATTEND_FORWARD_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "absl/container/inlined_vector.h"
#include "hwy/highway.h"
#include "kernels/core/run_control.h"
#include "kernels/cpu/attend/log_sums-inl.h"
#include "kernels/cpu/attend/query_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline void QueryTile::Save(float* state) const {
  std::copy_n(max_, kTile, state);
  std::copy_n(sum_, kTile, state + kTile);
  float* sum_vp = state + 2 * kTile;
  if (has_values_) {
    std::copy_n(sum_vp_, panels_ * t_.Dv * kPanel, sum_vp);
  } else {
    std::fill_n(sum_vp, panels_ * t_.Dv * kPanel, 0.0f);
  }
}

inline void QueryTile::Merge(const float* state) {
  const DF d;
  if (!has_values_) std::fill_n(sum_vp_, panels_ * t_.Dv * kPanel, 0.0f);
  has_values_ = true;
  for (int64_t lane = 0; lane < panels_ * kPanel; lane += kLanes) {
    const VF own = hn::LoadU(d, max_ + lane), other = hn::LoadU(d, state + lane);
    const VF max = hn::Max(own, other);
    // Where neither has seen anything: -inf - 0 instead of -inf - -inf.
    const VF base = hn::IfThenZeroElse(hn::Eq(max, hn::Set(d, kMinusInf)), max);
    const VF keep = ExpWeight(d, hn::Sub(own, base)), add = ExpWeight(d, hn::Sub(other, base));
    const auto merge = [&](float* to, const float* from) HWY_ATTR {
      const VF kept = hn::Mul(hn::LoadU(d, to), keep);
      hn::StoreU(hn::MulAdd(hn::LoadU(d, from), add, kept), d, to);
    };
    hn::StoreU(max, d, max_ + lane);
    merge(sum_ + lane, state + kTile + lane);
    const int64_t at = lane / kPanel * t_.Dv * kPanel + lane % kPanel;
    for (int64_t j = 0; j < t_.Dv; ++j) {
      merge(sum_vp_ + at + j * kPanel, state + 2 * kTile + at + j * kPanel);
    }
  }
}

// What the sum of weighted values of row i of the tile must be multiplied with. REQUIRES: it sees
// something.
inline float QueryTile::FactorOf(int64_t i) const {
  if (t_.terms.is_softmax()) return 1 / sum_[i];
  const HeadRows& weight = t_.terms.row_weight;
  const int64_t row = t_.QueryRow(first_ + i);
  return weight.data == nullptr || row < 0 ? 1.0f : weight.Scalar(row);
}

inline void QueryTile::StoreOut(int64_t panel) {
  const DF d;
  const int64_t first = panel * kPanel, count = std::min(kPanel, queries_ - first);
  // Rows that lie one after the other and all see something are transposed where they lie.
  bool in_place = t_.out.dtype == DType::kF32 && t_.query_rows == nullptr;
  for (int64_t i = 0; i < count; ++i) {
    const bool sees = sum_[first + i] != 0.0f;
    in_place = in_place && sees;
    shrink_[first + i] = sees ? FactorOf(first + i) : 0.0f;
  }
  float* sum = SumVP(panel);
  if (in_place) {
    for (int64_t j = 0; j < t_.Dv; ++j) {
      for (int64_t x = 0; x < Lanes(panel); x += kLanes) {
        float* at = sum + j * kPanel + x;
        hn::StoreU(hn::Mul(hn::LoadU(d, at), hn::LoadU(d, shrink_ + first + x)), d, at);
      }
    }
    return Transpose(sum, kPanel, t_.Dv, count,
                     reinterpret_cast<float*>(t_.out.Row(t_.first + first_ + first)),
                     t_.out.stride / static_cast<int64_t>(sizeof(float)));
  }
  Transpose(sum, kPanel, t_.Dv, count, scores_, t_.Dv);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = t_.QueryRow(first_ + first + i);
    if (row < 0) continue;
    if (sum_[first + i] == 0.0f) {
      std::memset(t_.out.Row(row), 0, t_.Dv * SizeOf(t_.out.dtype));
    } else {
      Narrow(t_.out.dtype, scores_ + i * t_.Dv, t_.Dv, t_.out.Row(row), shrink_[first + i]);
    }
  }
}

inline void QueryTile::StoreLse(int64_t rows) {
  // Rows beyond the item's queries see the sink alone, those beyond nq nothing.
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t row = t_.QueryRow(first_ + i);
    const bool sinks = row < t_.valid_rows && t_.terms.sink != kMinusInf;
    if (i >= queries_ && row >= 0) {
      max_[i] = sinks ? t_.terms.sink : 0.0f;
      sum_[i] = sinks ? 1.0f : 0.0f;
    }
  }
  const LogSums log_sums(max_, sum_);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t row = t_.QueryRow(first_ + i);
    if (row >= 0) log_sums.Store(i, t_.lse, t_.lse_low, row);
  }
}

inline void QueryTile::Store() {
  for (int64_t p = 0; has_values_ && p < panels_; ++p) StoreOut(p);
  const int64_t rows = std::min(kTile, t_.rows - first_);
  for (int64_t i = has_values_ ? queries_ : 0; i < rows; ++i) {
    const int64_t row = t_.QueryRow(first_ + i);
    if (row >= 0) std::memset(t_.out.Row(row), 0, t_.Dv * SizeOf(t_.out.dtype));
  }
  if (t_.terms.is_softmax()) StoreLse(rows);
}

// Scratch memory of one thread, handed out from the front.
struct Scratch {
  float* next;
  float* operator()(int64_t floats) {
    float* taken = next;
    next += RoundUp(floats, 16);
    return taken;
  }
};

inline int64_t ScoreFloats(const AttendItem& item) {
  return kPanel * std::max({kBlockTiles * kTile, item.D, item.Dv});
}

// The tile that is furthest behind goes next: what it reads, the others have read lately or will
// read soon. Which tiles share an item changes no result. With `state` the item is one tile, whose
// state is saved instead of its rows.
inline void AttendQueries(const AttendItem& item, float* scratch, float* state) {
  Scratch memory{scratch};
  const auto take = [&](int64_t floats) { return memory(floats); };
  float* scores = take(ScoreFloats(item));
  KeyTiles keys(item, take);
  const TermSpace space(item, take);
  absl::InlinedVector<QueryTile, kMaxItemTiles> tiles;
  ComputedTile computed[kBlockTiles];
  for (int64_t i = 0; i < CeilDiv(item.rows, kTile); ++i) {
    tiles.emplace_back(item, i, scores, space, take).LoadQueries();
  }
  const auto behind = [](const QueryTile& a, const QueryTile& b) { return a.next() < b.next(); };
  for (;;) {
    QueryTile& tile = *std::min_element(tiles.begin(), tiles.end(), behind);
    if (tile.next() == VisibleTile::kNone) break;
    if (CheckPoint()) return;
    tile.Advance(&keys, computed);
  }
  for (QueryTile& tile : tiles) {
    state == nullptr ? tile.Store() : tile.Save(state);
    tile.AddCountedPairs();
  }
}

// The rows of an item whose key tiles were looked at in `parts` parts, in their order.
inline void MergeQueries(const AttendItem& item, float* scratch, const float* states,
                         int64_t parts) {
  Scratch memory{scratch};
  const auto take = [&](int64_t floats) { return memory(floats); };
  float* scores = take(ScoreFloats(item));
  const TermSpace space(item, take);
  QueryTile tile(item, 0, scores, space, take);
  tile.LoadQueries();
  for (int64_t part = 0; part < parts; ++part) {
    if (CheckPoint()) return;
    tile.Merge(states + part * AttendStateFloats(item.Dv));
  }
  tile.Store();
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
