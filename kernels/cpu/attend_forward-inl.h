// Some tiles of queries against their visible keys, online softmax, queries in lanes.
#if defined(ATTND_CPU_ATTEND_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_ATTEND_FORWARD_INL_H_
#undef ATTND_CPU_ATTEND_FORWARD_INL_H_
#else
#define ATTND_CPU_ATTEND_FORWARD_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>

#include "absl/container/inlined_vector.h"
#include "hwy/highway.h"
#include "kernels/cpu/attend_item.h"
#include "kernels/cpu/attend_terms-inl.h"
#include "kernels/cpu/convert-inl.h"
#include "kernels/cpu/gemm-inl.h"
#include "kernels/cpu/key_tiles-inl.h"
#include "kernels/cpu/lane_mask-inl.h"
#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// PanelGemm for the first `lanes` columns of a panel.
template <Start kStart>
HWY_INLINE void Multiply(int64_t M, int64_t lanes, int64_t K, Broadcast a, const float* b, float* c,
                         const float* scale = nullptr) {
  if (lanes == kPanel) {
    PanelGemm<kStart>(M, K, a, b, c, scale);
  } else {
    Gemm<kStart>(M, lanes, K, a, {b, kPanel}, {c, kPanel}, scale);
  }
}

// The online softmax of one tile of queries. Every array keeps queries in panels of kPanel lanes.
class QueryTile {
 public:
  // Tile `index` of the item. `scores` and `space` are shared by the item's tiles; `take`(floats)
  // returns scratch memory.
  template <class Take>
  QueryTile(const AttendItem& item, int64_t index, float* scores, const TermSpace& space,
            const Take& take)
      : t_(item),
        first_(index * kTile),
        queries_(std::clamp<int64_t>(item.queries - first_, 0, kTile)),
        panels_(CeilDiv(queries_, kPanel)),
        visible_(item.pattern, &Pattern::by_query, item.tile + index,
                 queries_ == 0 ? 0 : CeilDiv(item.keys, kTile)),
        left_(item.count),
        qt_(take(item.D * kTile)),
        scores_(scores),
        sum_vp_(take(item.Dv * kTile)),
        max_(take(kTile)),
        sum_(take(kTile)),
        shrink_(take(kTile)),
        terms_(item, first_, queries_, space, take) {
    visible_.Skip(item.skip);
  }

  void LoadQueries();
  // The next key tile to work on, VisibleTile::kNone after the last.
  int64_t next() const { return left_ == 0 ? VisibleTile::kNone : visible_.tile().index; }
  // Works on up to kBlockTiles of them.
  void Advance(KeyTiles* keys);
  void Store();

  // The state, AttendStateFloats of it, for another one that looked at other keys.
  void Save(float* state) const;
  // Adds what another one saved. Sums are of disjoint keys.
  void Merge(const float* state);

 private:
  // Tiles whose scores are normalised together.
  struct Block {
    int count = 0;
    int64_t keys = 0;
    KeyPart parts[kBlockTiles];
  };

  Block NextBlock(KeyTiles* keys);
  void Mask(const KeyPart& part, int64_t panel);
  bool Normalise(int64_t panel, int64_t keys);
  template <int kV>
  bool NormaliseLanes(int64_t panel, int64_t x, int64_t keys);
  void AddValues(const Block& block, int64_t panel, bool shrinks, KeyTiles* keys);
  void AddVisible(uint64_t sees, const float* weights, int64_t panel, const float* v);
  void StoreRow(int64_t i, float* out);

  float* SumVP(int64_t panel) const { return sum_vp_ + panel * t_.Dv * kPanel; }
  // Lanes of a panel that are needed, whole vectors.
  int64_t Lanes(int64_t panel) const {
    return std::min(kPanel, RoundUpTo(queries_ - panel * kPanel, kLanes));
  }

  const AttendItem& t_;
  int64_t first_, queries_, panels_;
  VisibleTiles visible_;
  int64_t left_;  // of the item's count
  bool has_values_ = false;
  float* qt_;                    // [panel][D][kPanel], times query_scale
  float* scores_;                // [key of the block][kPanel]; scores, then weights
  float* sum_vp_;                // [panel][Dv][kPanel]
  float *max_, *sum_, *shrink_;  // [kTile]; without softmax 0, pairs seen, unused
  ScoreTerms terms_;
};

inline void QueryTile::LoadQueries() {
  for (int64_t p = 0; p < panels_; ++p) {
    // Lanes without a query compute something finite that nobody reads.
    std::fill_n(scores_, kPanel * t_.D, 0.0f);
    for (int64_t i = 0; i < std::min(kPanel, queries_ - p * kPanel); ++i) {
      const int64_t row = t_.QueryRow(first_ + p * kPanel + i);
      if (row >= 0) Widen(t_.q.dtype, t_.q.Row(row), t_.D, scores_ + i * t_.D, t_.query_scale);
    }
    Transpose(scores_, t_.D, kPanel, t_.D, qt_ + p * t_.D * kPanel, kPanel);
  }
  if (t_.has_terms && queries_ > 0) terms_.LoadQueries(scores_);
  // A sink is a key that has been seen, with the value 0.
  const float* sink = t_.terms.sink;
  const bool has_sink = sink != nullptr && *sink != kMinusInf;
  const float none = t_.terms.is_softmax() ? kMinusInf : 0.0f;
  std::fill_n(max_, kTile, has_sink ? *sink * std::numbers::log2e_v<float> : none);
  std::fill_n(sum_, kTile, has_sink ? 1.0f : 0.0f);
}

inline QueryTile::Block QueryTile::NextBlock(KeyTiles* keys) {
  Block block;
  uint32_t busy = 0;
  for (; block.count < kBlockTiles && next() != VisibleTile::kNone; visible_.Next(), --left_) {
    const VisibleTile& tile = visible_.tile();
    const int64_t first = tile.index * kTile, n = std::min(kTile, t_.keys - first);
    const int place = keys->Prepare(tile.index, busy);
    busy |= 1u << place;
    block.parts[block.count++] = {first,      n,     block.keys,         tile.mask,
                                  tile.terms, place, keys->absent(place)};
    block.keys += n;
  }
  return block;
}

inline void QueryTile::Advance(KeyTiles* keys) {
  const Block block = NextBlock(keys);
  for (int64_t p = 0; p < panels_; ++p) {
    for (int i = 0; i < block.count; ++i) {
      const KeyPart& part = block.parts[i];
      const Rows k = keys->Keys(part.place);
      float* scores = scores_ + part.offset * kPanel;
      Multiply<Start::kZero>(part.keys, Lanes(p), t_.D, {k.data, k.stride, 1},
                             qt_ + p * t_.D * kPanel, scores);
      if (t_.has_terms) {
        terms_.Apply(part, p, scores, sum_ + p * kPanel);
      } else if (part.mask != nullptr || part.absent != 0) {
        Mask(part, p);
      }
    }
    const bool shrinks = t_.terms.is_softmax() && Normalise(p, block.keys);
    AddValues(block, p, shrinks, keys);
  }
  has_values_ = true;
}

// Selects, so that whatever an invisible pair computed is gone.
inline void QueryTile::Mask(const KeyPart& part, int64_t panel) {
  const DF d;
  const VF hidden = hn::Set(d, kMinusInf);
  for (int64_t key = 0; key < part.keys; ++key) {
    const uint64_t word = part.Sees(key) >> (panel * kPanel);
    float* row = scores_ + (part.offset + key) * kPanel;
    for (int64_t x = 0; x < kPanel; x += kLanes) {
      hn::StoreU(hn::IfThenElse(LaneMask(word >> x), hn::LoadU(d, row + x), hidden), d, row + x);
    }
  }
}

// Turns the scores of one panel into weights relative to the new maximum, adds them to the sum and
// leaves in shrink_ what older sums must be multiplied with. False when that is 1 everywhere.
inline bool QueryTile::Normalise(int64_t panel, int64_t keys) {
  bool shrinks = false;
  const int64_t lanes = Lanes(panel);
  int64_t x = 0;
  for (; x + 2 * kLanes <= lanes; x += 2 * kLanes) shrinks |= NormaliseLanes<2>(panel, x, keys);
  for (; x < lanes; x += kLanes) shrinks |= NormaliseLanes<1>(panel, x, keys);
  return shrinks;
}

template <int kV>
bool QueryTile::NormaliseLanes(int64_t panel, int64_t x, int64_t keys) {
  const DF d;
  float* at = scores_ + x;
  const int64_t lane = panel * kPanel + x;
  VF old[kV], max[kV], sum[kV];
  for (int v = 0; v < kV; ++v) max[v] = old[v] = hn::LoadU(d, max_ + lane + v * kLanes);
  for (int64_t key = 0; key < keys; ++key) {
    for (int v = 0; v < kV; ++v) {
      max[v] = hn::Max(hn::LoadU(d, at + key * kPanel + v * kLanes), max[v]);
    }
  }
  bool shrinks = false;
  for (int v = 0; v < kV; ++v) {
    hn::StoreU(max[v], d, max_ + lane + v * kLanes);
    // A lane that has seen nothing: -inf - 0 instead of -inf - -inf.
    max[v] = hn::IfThenZeroElse(hn::Eq(max[v], hn::Set(d, kMinusInf)), max[v]);
    const VF shrink = Exp2Small(d, hn::Sub(old[v], max[v]));
    hn::StoreU(shrink, d, shrink_ + lane + v * kLanes);
    sum[v] = hn::Mul(hn::LoadU(d, sum_ + lane + v * kLanes), shrink);
    shrinks |= !hn::AllTrue(d, hn::Eq(shrink, hn::Set(d, 1.0f)));
  }
  for (int64_t key = 0; key < keys; ++key) {
    for (int v = 0; v < kV; ++v) {
      float* to = at + key * kPanel + v * kLanes;
      const VF weight = Exp2Small(d, hn::Sub(hn::LoadU(d, to), max[v]));
      hn::StoreU(weight, d, to);
      sum[v] = hn::Add(sum[v], weight);
    }
  }
  for (int v = 0; v < kV; ++v) hn::StoreU(sum[v], d, sum_ + lane + v * kLanes);
  return shrinks;
}

inline void QueryTile::AddValues(const Block& block, int64_t panel, bool shrinks, KeyTiles* keys) {
  float* sum = SumVP(panel);
  const int64_t lanes = keys->packs() ? kPanel : Lanes(panel);
  for (int i = 0; i < block.count;) {
    // Packed places side by side are one longer sum.
    const KeyPart& first = block.parts[i];
    int64_t n = first.keys;
    for (++i;
         i < block.count && keys->packs() && block.parts[i].place == block.parts[i - 1].place + 1;
         ++i) {
      n += block.parts[i].keys;
    }
    const Broadcast vt = keys->ValuesT(first.place);
    const float* weights = scores_ + first.offset * kPanel;
    if (first.offset > 0 || (has_values_ && !shrinks)) {
      Multiply<Start::kAdd>(t_.Dv, lanes, n, vt, weights, sum);
    } else if (has_values_) {
      Multiply<Start::kScale>(t_.Dv, lanes, n, vt, weights, sum, shrink_ + panel * kPanel);
    } else {
      Multiply<Start::kZero>(t_.Dv, lanes, n, vt, weights, sum);
    }
  }
  for (int i = 0; i < block.count; ++i) {
    const KeyPart& part = block.parts[i];
    for (uint64_t odd = keys->hidden_values(part.place); odd != 0; odd &= odd - 1) {
      const int64_t key = std::countr_zero(odd);
      AddVisible(terms_.Sees(part, key), scores_ + (part.offset + key) * kPanel, panel,
                 keys->Value(part.first + key));
    }
  }
}

// One key to the queries of a panel that see it.
inline void QueryTile::AddVisible(uint64_t sees, const float* weights, int64_t panel,
                                  const float* v) {
  const DF d;
  for (int64_t x = 0; x < kPanel; x += kLanes) {
    const auto lanes = LaneMask(sees >> (panel * kPanel + x));
    const VF weight = hn::LoadU(d, weights + x);
    for (int64_t j = 0; j < t_.Dv; ++j) {
      float* at = SumVP(panel) + j * kPanel + x;
      const VF sum = hn::LoadU(d, at);
      hn::StoreU(hn::IfThenElse(lanes, hn::MulAdd(weight, hn::Set(d, v[j]), sum), sum), d, at);
    }
  }
}

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
    const VF keep = Exp2Small(d, hn::Sub(own, base)), add = Exp2Small(d, hn::Sub(other, base));
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

// Row i of the tile, whose sum of weighted values `out` is; null: it has none.
inline void QueryTile::StoreRow(int64_t i, float* out) {
  const int64_t row = t_.QueryRow(first_ + i);
  if (row < 0) return;
  const bool is_softmax = t_.terms.is_softmax();
  const float sum = i < queries_ ? sum_[i] : 0.0f;
  if (out != nullptr && sum != 0.0f) {
    const HeadRows& weight = t_.terms.row_weight;
    const float factor = is_softmax ? 1 / sum : weight.data == nullptr ? 1 : weight.Scalar(row);
    Narrow(t_.out.dtype, out, t_.Dv, t_.out.Row(row), factor);
  } else {
    std::memset(t_.out.Row(row), 0, t_.Dv * SizeOf(t_.out.dtype));
  }
  if (!is_softmax) return;
  const float* sink = row < t_.valid_rows ? t_.terms.sink : nullptr;
  const bool only_sink =
      sink != nullptr &&
      (sum == 0 || (sum == 1 && max_[i] == *sink * std::numbers::log2e_v<float>));
  constexpr double kLn2 = 0.69314718055994530942;
  const double log2_sum = sum == 0 ? 0 : max_[i] + std::log2(static_cast<double>(sum));
  t_.lse.Scalar(row) = only_sink  ? *sink
                       : sum == 0 ? kMinusInf
                                  : static_cast<float>(log2_sum * kLn2);
}

inline void QueryTile::Store() {
  for (int64_t p = 0; has_values_ && p < panels_; ++p) {
    Transpose(SumVP(p), kPanel, t_.Dv, kPanel, scores_, t_.Dv);
    for (int64_t i = 0; i < std::min(kPanel, queries_ - p * kPanel); ++i) {
      StoreRow(p * kPanel + i, scores_ + i * t_.Dv);
    }
  }
  const int64_t rows = std::min(kTile, t_.rows - first_);
  for (int64_t i = has_values_ ? queries_ : 0; i < rows; ++i) StoreRow(i, nullptr);
}

// Scratch memory of one thread, handed out from the front.
struct Scratch {
  float* next;
  float* operator()(int64_t floats) {
    float* taken = next;
    next += RoundUpTo(floats, 16);
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
  for (int64_t i = 0; i < CeilDiv(item.rows, kTile); ++i) {
    tiles.emplace_back(item, i, scores, space, take).LoadQueries();
  }
  const auto behind = [](const QueryTile& a, const QueryTile& b) { return a.next() < b.next(); };
  for (;;) {
    QueryTile& tile = *std::min_element(tiles.begin(), tiles.end(), behind);
    if (tile.next() == VisibleTile::kNone) break;
    tile.Advance(&keys);
  }
  for (QueryTile& tile : tiles) state == nullptr ? tile.Store() : tile.Save(state);
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
    tile.Merge(states + part * AttendStateFloats(item.Dv));
  }
  tile.Store();
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
