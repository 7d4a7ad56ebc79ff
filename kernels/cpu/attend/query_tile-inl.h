// A tile of queries and its online softmax, queries in lanes.
#if defined(ATTND_CPU_QUERY_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_QUERY_TILE_INL_H_
#undef ATTND_CPU_QUERY_TILE_INL_H_
#else
#define ATTND_CPU_QUERY_TILE_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/attend/attend_item.h"
#include "kernels/cpu/attend/attend_terms-inl.h"
#include "kernels/cpu/attend/key_tiles-inl.h"
#include "kernels/cpu/simd/convert-inl.h"
#include "kernels/cpu/simd/gemm-inl.h"
#include "kernels/cpu/simd/lane_mask-inl.h"
#include "kernels/cpu/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

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
                 {.end = queries_ == 0 ? 0 : CeilDiv(item.keys, kTile),
                  .skip = item.skip,
                  .count = item.count}),
        qt_(take(item.D * kTile)),
        scores_(scores),
        sum_vp_(take(item.Dv * kTile)),
        max_(take(kTile)),
        sum_(take(kTile)),
        shrink_(take(kTile)),
        terms_(item, first_, queries_, space, take) {}

  void LoadQueries();
  // The next key tile to work on, VisibleTile::kNone after the last.
  int64_t next() const { return visible_.index(); }
  // Works on up to kBlockTiles of them. `computed`: space for as many, of no meaning afterwards.
  void Advance(KeyTiles* keys, ComputedTile* computed);
  void Store();

  // Saves the state, AttendStateFloats of it, for a tile of the same queries with other keys.
  void Save(float* state) const;
  // Adds the pairs counted here to the item's computed_pairs.
  void AddCountedPairs() const {
    if (computed_pairs_ == 0) return;
    t_.computed_pairs->Add(computed_pairs_ * t_.heads_alike);
  }
  // Adds a saved state, of other keys.
  void Merge(const float* state);

 private:
  // Tiles whose scores are normalised together.
  struct Block {
    int count = 0;
    int64_t keys = 0;
    KeyPart parts[kBlockTiles];
  };
  // Stretches of rows of scores that a strip looks at.
  struct Stretches {
    int count = 0;
    SlotRange at[kBlockTiles];
  };

  Block NextBlock(KeyTiles* keys, ComputedTile* computed);
  void CountPairs(const KeyPart& part);
  template <Start kStart>
  void Score(const KeyPart& part, int64_t panel, const Rows& k);
  void Mask(const KeyPart& part, int64_t panel);
  Stretches StretchesOf(const Block& block, int64_t strip) const;
  bool Normalise(const Block& block, int64_t panel);
  template <int kV>
  bool NormaliseLanes(int64_t lane, float* scores, const Stretches& stretches);
  void AddValues(const Block& block, int64_t panel, bool shrinks, KeyTiles* keys);
  void AddKeys(Start start, int64_t panel, int64_t x, int64_t lanes, SlotRange rows, Broadcast vt);
  void AddHiddenValues(const Block& block, int64_t panel, KeyTiles* keys);
  void AddVisible(uint64_t sees, const float* weights, int64_t panel, const float* v);
  float FactorOf(int64_t i) const;
  void StoreOut(int64_t panel);
  void StoreLse(int64_t rows);

  float* SumVP(int64_t panel) const { return sum_vp_ + panel * t_.Dv * kPanel; }
  // Lanes of a panel that are needed, whole vectors.
  int64_t Lanes(int64_t panel) const {
    return std::min(kPanel, RoundUp(queries_ - panel * kPanel, kLanes));
  }
  // Likewise of a strip; none if it is not needed.
  int64_t Lanes(int64_t panel, int64_t strip) const {
    return std::clamp<int64_t>(Lanes(panel) - strip * kStrip, 0, kStrip);
  }

  const AttendItem& t_;
  int64_t first_, queries_, panels_;
  VisibleTiles visible_;
  int64_t computed_pairs_ = 0;  // visible ones of tiles whose mask is computed
  bool has_values_ = false;
  float* qt_;                    // [panel][D][kPanel], times query_scale
  float* scores_;                // [key of the block][kPanel]; scores, then weights
  float* sum_vp_;                // [panel][Dv][kPanel]
  float *max_, *sum_, *shrink_;  // [kTile]; without softmax 0, pairs seen, unused
  ScoreTerms terms_;
};

inline void QueryTile::LoadQueries() {
  const DF d;
  const VF scale = hn::Set(d, t_.query_scale);
  // Rows that lie one after the other are transposed where they lie.
  const bool in_place = t_.q.dtype == DType::kF32 && t_.query_rows == nullptr;
  for (int64_t p = 0; p < panels_; ++p) {
    const int64_t first = first_ + p * kPanel, count = std::min(kPanel, queries_ - p * kPanel);
    float* panel = qt_ + p * t_.D * kPanel;
    // Lanes without a query compute finite numbers that are not read.
    if (count < kPanel) std::fill_n(panel, t_.D * kPanel, 0.0f);
    if (in_place) {
      Transpose(reinterpret_cast<const float*>(t_.q.Row(t_.first + first)),
                t_.q.stride / static_cast<int64_t>(sizeof(float)), count, t_.D, panel, kPanel);
    } else {
      std::fill_n(scores_, count * t_.D, 0.0f);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t row = t_.QueryRow(first + i);
        if (row >= 0) Widen(t_.q.dtype, t_.q.Row(row), t_.D, scores_ + i * t_.D);
      }
      Transpose(scores_, t_.D, count, t_.D, panel, kPanel);
    }
    for (int64_t i = 0; i < t_.D * kPanel; i += kLanes) {
      hn::StoreU(hn::Mul(hn::LoadU(d, panel + i), scale), d, panel + i);
    }
  }
  if (t_.has_terms && queries_ > 0) terms_.LoadQueries(scores_);
  // A sink is a key that has been seen, with the value 0.
  const bool has_sink = t_.terms.sink != kMinusInf;
  const float none = t_.terms.is_softmax() ? kMinusInf : 0.0f;
  std::fill_n(max_, kTile, has_sink ? t_.terms.sink : none);
  std::fill_n(sum_, kTile, has_sink ? 1.0f : 0.0f);
}

inline QueryTile::Block QueryTile::NextBlock(KeyTiles* keys, ComputedTile* computed) {
  Block block;
  uint32_t busy = 0;
  while (block.count < kBlockTiles && next() != VisibleTile::kNone) {
    const VisibleTile tile = visible_.TakeTile(&computed[block.count]);
    visible_.Next();
    const int64_t first = tile.index * kTile, n = std::min(kTile, t_.keys - first);
    const int place = keys->Prepare(tile.index, busy);
    busy |= 1u << place;
    block.parts[block.count++] = {first,      n,     block.keys,         tile.mask,
                                  tile.terms, place, keys->absent(place)};
    if (tile.is_computed && t_.computed_pairs != nullptr) CountPairs(block.parts[block.count - 1]);
    block.keys += n;
  }
  return block;
}

inline void QueryTile::CountPairs(const KeyPart& part) {
  const uint64_t queries = queries_ == kTile ? ~uint64_t{0} : (uint64_t{1} << queries_) - 1;
  for (int64_t key = 0; key < part.keys; ++key) {
    computed_pairs_ += std::popcount(part.Sees(key) & queries);
  }
}

inline void QueryTile::Advance(KeyTiles* keys, ComputedTile* computed) {
  Block block = NextBlock(keys, computed);
  for (int64_t p = 0; p < panels_; ++p) {
    for (int i = 0; i < block.count; ++i) {
      KeyPart& part = block.parts[i];
      part.LookFrom(p, Lanes(p));
      if (part.seen.size() == 0) continue;
      if (t_.has_terms && terms_.has_start()) {
        terms_.Start(part, p, scores_ + part.offset * kPanel);
        Score<Start::kAddLast>(part, p, keys->Keys(part.place));
      } else {
        Score<Start::kZero>(part, p, keys->Keys(part.place));
      }
      if (t_.has_terms) {
        terms_.Apply(part, p, scores_ + part.offset * kPanel, sum_ + p * kPanel);
      } else if (part.hides()) {
        Mask(part, p);
      }
    }
    const bool shrinks = t_.terms.is_softmax() && Normalise(block, p);
    AddValues(block, p, shrinks, keys);
    AddHiddenValues(block, p, keys);
  }
  has_values_ = true;
}

// Products of a panel with the keys that it sees.
template <Start kStart>
void QueryTile::Score(const KeyPart& part, int64_t panel, const Rows& k) {
  const auto multiply = [&](SlotRange range, int64_t x, int64_t lanes, int64_t unit) HWY_ATTR {
    if (range.size() == 0) return;
    // A few rows more are faster than a remainder.
    const int64_t rows = std::min(RoundUp(range.size(), unit), part.keys);
    const int64_t first = std::min(range.begin, part.keys - rows);
    PanelGemm<kStart>(rows, lanes, t_.D, {k.data + first * k.stride, k.stride, 1},
                      qt_ + panel * t_.D * kPanel + x,
                      scores_ + (part.offset + first) * kPanel + x);
  };
  if (part.is_even) return multiply(part.seen, 0, Lanes(panel), kRows);
  for (int64_t s = 0; Lanes(panel, s) > 0; ++s) {
    multiply(part.strips[s], s * kStrip, Lanes(panel, s), 2 * kRows);
  }
}

// Invisible pairs are selected away, whatever they hold.
inline void QueryTile::Mask(const KeyPart& part, int64_t panel) {
  const DF d;
  const VF hidden = hn::Set(d, kMinusInf);
  constexpr uint64_t kAll = ~uint64_t{0} >> (64 - kPanel);
  for (int64_t key = part.seen.begin; key < part.seen.end; ++key) {
    const uint64_t word = part.Sees(key) >> (panel * kPanel);
    if ((word & kAll) == kAll) continue;
    float* row = scores_ + (part.offset + key) * kPanel;
    for (int64_t x = 0; x < kPanel; x += kLanes) {
      hn::StoreU(hn::IfThenElse(LaneMask(word >> x), hn::LoadU(d, row + x), hidden), d, row + x);
    }
  }
}

inline QueryTile::Stretches QueryTile::StretchesOf(const Block& block, int64_t strip) const {
  Stretches found;
  for (int i = 0; i < block.count; ++i) {
    const KeyPart& part = block.parts[i];
    const SlotRange range = part.is_even ? part.seen : part.strips[strip];
    if (range.size() == 0) continue;
    const SlotRange rows = {part.offset + range.begin, part.offset + range.end};
    if (found.count > 0 && found.at[found.count - 1].end == rows.begin) {
      found.at[found.count - 1].end = rows.end;
    } else {
      found.at[found.count++] = rows;
    }
  }
  return found;
}

// Turns the scores of one panel into weights relative to the new maximum, adds them to the sum and
// leaves in shrink_ what older sums must be multiplied with. False when that is 1 everywhere.
inline bool QueryTile::Normalise(const Block& block, int64_t panel) {
  bool shrinks = false;
  for (int64_t s = 0; Lanes(panel, s) > 0; ++s) {
    const Stretches stretches = StretchesOf(block, s);
    const int64_t lane = panel * kPanel + s * kStrip;
    float* scores = scores_ + s * kStrip;
    shrinks |= Lanes(panel, s) == kStrip ? NormaliseLanes<2>(lane, scores, stretches)
                                         : NormaliseLanes<1>(lane, scores, stretches);
  }
  return shrinks;
}

template <int kV>
bool QueryTile::NormaliseLanes(int64_t lane, float* scores, const Stretches& stretches) {
  const DF d;
  VF old[kV], max[kV], sum[kV];
  for (int v = 0; v < kV; ++v) max[v] = old[v] = hn::LoadU(d, max_ + lane + v * kLanes);
  for (int i = 0; i < stretches.count; ++i) {
    for (int64_t key = stretches.at[i].begin; key < stretches.at[i].end; ++key) {
      for (int v = 0; v < kV; ++v) {
        max[v] = hn::Max(hn::LoadU(d, scores + key * kPanel + v * kLanes), max[v]);
      }
    }
  }
  bool shrinks = false;
  for (int v = 0; v < kV; ++v) {
    hn::StoreU(max[v], d, max_ + lane + v * kLanes);
    // A lane that has seen nothing: -inf - 0 instead of -inf - -inf.
    max[v] = hn::IfThenZeroElse(hn::Eq(max[v], hn::Set(d, kMinusInf)), max[v]);
    const VF shrink = ExpWeight(d, hn::Sub(old[v], max[v]));
    hn::StoreU(shrink, d, shrink_ + lane + v * kLanes);
    sum[v] = hn::Mul(hn::LoadU(d, sum_ + lane + v * kLanes), shrink);
    shrinks |= !hn::AllTrue(d, hn::Eq(shrink, hn::Set(d, 1.0f)));
  }
  for (int i = 0; i < stretches.count; ++i) {
    for (int64_t key = stretches.at[i].begin; key < stretches.at[i].end; ++key) {
      for (int v = 0; v < kV; ++v) {
        float* to = scores + key * kPanel + v * kLanes;
        const VF weight = ExpWeight(d, hn::Sub(hn::LoadU(d, to), max[v]));
        hn::StoreU(weight, d, to);
        sum[v] = hn::Add(sum[v], weight);
      }
    }
  }
  for (int v = 0; v < kV; ++v) hn::StoreU(sum[v], d, sum_ + lane + v * kLanes);
  return shrinks;
}

inline void QueryTile::AddValues(const Block& block, int64_t panel, bool shrinks, KeyTiles* keys) {
  Start start = !has_values_ ? Start::kZero : shrinks ? Start::kScale : Start::kAdd;
  for (int i = 0; i < block.count; start = Start::kAdd) {
    const KeyPart& first = block.parts[i++];
    Broadcast vt = keys->ValuesT(first.place);
    const auto add = [&](SlotRange range, int64_t x, int64_t lanes) HWY_ATTR {
      AddKeys(start, panel, x, lanes, {first.offset + range.begin, first.offset + range.end},
              vt.From(range.begin));
    };
    if (!first.is_even) {
      for (int64_t s = 0; Lanes(panel, s) > 0; ++s)
        add(first.strips[s], s * kStrip, Lanes(panel, s));
      continue;
    }
    // Packed places side by side are one longer sum.
    SlotRange range = first.seen;
    const auto continues = [&](const KeyPart& last, const KeyPart& next) {
      return keys->packs() && next.place == last.place + 1 && next.is_even &&
             last.seen.end == last.keys && next.seen.begin == 0;
    };
    for (; i < block.count && continues(block.parts[i - 1], block.parts[i]); ++i) {
      range.end += block.parts[i].seen.end;
    }
    add(range, 0, Lanes(panel));
  }
}

// Weighted values of keys to lanes [x, x + lanes) of a panel; `rows` of the scores.
inline void QueryTile::AddKeys(Start start, int64_t panel, int64_t x, int64_t lanes, SlotRange rows,
                               Broadcast vt) {
  const float* weights = scores_ + rows.begin * kPanel + x;
  float* sum = SumVP(panel) + x;
  const int64_t n = rows.size();
  if (start == Start::kScale) {
    PanelGemm<Start::kScale>(t_.Dv, lanes, n, vt, weights, sum, shrink_ + panel * kPanel + x);
  } else if (start == Start::kZero) {
    PanelGemm<Start::kZero>(t_.Dv, lanes, n, vt, weights, sum);
  } else if (n > 0) {
    PanelGemm<Start::kAdd>(t_.Dv, lanes, n, vt, weights, sum);
  }
}

inline void QueryTile::AddHiddenValues(const Block& block, int64_t panel, KeyTiles* keys) {
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

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
