// What attend does to a panel of scores between product and exponential: the terms of
// kernels/device/attend.h and of a pattern, masks, and the weighting of ReLU attention.
#if defined(ATTND_CPU_ATTEND_TERMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_ATTEND_TERMS_INL_H_
#undef ATTND_CPU_ATTEND_TERMS_INL_H_
#else
#define ATTND_CPU_ATTEND_TERMS_INL_H_
#endif

#include <algorithm>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/attend/attend_item.h"
#include "kernels/cpu/attend/attend_relative-inl.h"
#include "kernels/cpu/attend/key_part-inl.h"
#include "kernels/cpu/attend/weighting-inl.h"
#include "kernels/cpu/simd/convert-inl.h"
#include "kernels/cpu/simd/gemm-inl.h"
#include "kernels/cpu/simd/lane_mask-inl.h"
#include "kernels/cpu/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// Space that the query tiles of an item share.
struct TermSpace {
  template <class Take>
  TermSpace(const AttendItem& item, const Take& take)
      : rows(take(item.terms.bias.data == nullptr ? 0 : kTile * kTile)),
        bias(take(item.terms.bias.data == nullptr ? 0 : kTile * kPanel)) {}
  float *rows, *bias;
};

// The terms of one tile of queries. Sequences are shorter than 2^30; positions may be beyond.
class ScoreTerms {
 public:
  template <class Take>
  ScoreTerms(const AttendItem& item, int64_t first, int64_t queries, const TermSpace& space,
             const Take& take)
      : t_(item),
        first_(first),
        queries_(queries),
        space_(space),
        position_(reinterpret_cast<int32_t*>(take(kTile))),
        beyond_(take(kTile)),
        relative_(item, first, queries, position_, take) {}

  // `rows` is space for a panel of queries.
  void LoadQueries(float* rows);
  // Whether scores do not start from zero, and what they start from.
  bool has_start() const { return relative_.given(); }
  void Start(const KeyPart& part, int64_t panel, float* scores) {
    relative_.Load(part, panel, scores);
  }
  // scores [key][kPanel], their start and query_scale q.k, become scores, or weights where no
  // softmax follows, with `seen` [kPanel] counting them. Only of keys that the panel sees.
  // Invisible pairs are selected away, whatever they hold. The backward adds the same terms in the
  // same order (attend_grad_terms-inl.h), so that it finds the same bits.
  void Apply(const KeyPart& part, int64_t panel, float* scores, float* seen) const;
  // Queries of the tile that see a key.
  uint64_t Sees(const KeyPart& part, int64_t key) const;

 private:
  void AddLabelled(const KeyPart& part, int64_t panel, float factor, float* scores) const;
  void Cap(const KeyPart& part, float* scores) const;
  void AddAlibi(const KeyPart& part, int64_t panel, float* scores) const;
  void AddConstants(const KeyPart& part, int64_t panel, float* scores) const;
  void AddBias(const KeyPart& part, float* scores) const;
  void LoadBias(const KeyPart& part, int64_t panel) const;
  float BiasOf(int64_t query_row, int64_t key_row) const;
  void Hide(const KeyPart& part, int64_t panel, float* scores) const;
  void Weigh(const KeyPart& part, int64_t panel, float* scores, float* seen) const;

  int64_t PanelQueries(int64_t panel) const { return std::min(kPanel, queries_ - panel * kPanel); }

  const AttendItem& t_;
  int64_t first_, queries_;
  const TermSpace& space_;
  int32_t* position_;  // [64], CutPosition::cut
  float* beyond_;      // [64], CutPosition::beyond
  RelativeScores relative_;
};

inline void ScoreTerms::LoadQueries(float* rows) {
  for (int64_t i = 0; i < kTile; ++i) {
    // Lanes without a query take the position of the last one.
    const int64_t row = t_.QueryRow(first_ + std::min(i, queries_ - 1));
    const CutPosition position(row + t_.terms.offset);
    position_[i] = position.cut;
    beyond_[i] = position.beyond;
  }
  if (relative_.given()) relative_.LoadQueries(rows);
}

inline void ScoreTerms::Apply(const KeyPart& part, int64_t panel, float* scores,
                              float* seen) const {
  const bool is_labelled =
      t_.terms.table.data != nullptr && part.terms != nullptr && !part.terms->labels.empty();
  const bool caps_table = t_.terms.params.cap_table;
  if (is_labelled && caps_table) AddLabelled(part, panel, t_.query_scale, scores);
  if (t_.terms.params.softcap > 0) Cap(part, scores);
  if (is_labelled && !caps_table) AddLabelled(part, panel, 1.0f, scores);
  if (t_.terms.slope != nullptr) AddAlibi(part, panel, scores);
  AddConstants(part, panel, scores);
  if (t_.terms.bias.data != nullptr) {
    LoadBias(part, panel);
    AddBias(part, scores);
  }
  if (!t_.terms.is_softmax()) {
    Weigh(part, panel, scores, seen);
  } else if (part.hides()) {
    Hide(part, panel, scores);
  }
}

inline void ScoreTerms::AddLabelled(const KeyPart& part, int64_t panel, float factor,
                                    float* scores) const {
  const HeadPlane& table = t_.terms.table;
  for (int64_t i = 0; i < PanelQueries(panel); ++i) {
    const int64_t row = t_.QueryRow(first_ + panel * kPanel + i);
    if (row < 0) continue;
    const char* entries = table.At(row, 0);
    for (int64_t key = part.seen.begin; key < part.seen.end; ++key) {
      const uint16_t label = part.terms->labels[key * kTile + panel * kPanel + i];
      if (label == TileTerms::kNoLabel) continue;
      float& score = scores[key * kPanel + i];
      score = WithLabelled(score, *reinterpret_cast<const float*>(entries + label * table.column),
                           factor);
    }
  }
}

inline float ScoreTerms::BiasOf(int64_t query_row, int64_t key_row) const {
  const HeadPlane& bias = t_.terms.bias;
  if (query_row < 0 || key_row < 0 || key_row >= t_.k_rows) return 0.0f;
  const char* at = bias.At(query_row, key_row);
  if (bias.dtype == DType::kF32) return *reinterpret_cast<const float*>(at);
  float value;
  Widen(bias.dtype, at, 1, &value);
  return value;
}

// The bias of the part to space_.bias, [key][kPanel].
inline void ScoreTerms::LoadBias(const KeyPart& part, int64_t panel) const {
  const HeadPlane& bias = t_.terms.bias;
  const int64_t queries = PanelQueries(panel);
  const bool is_row = t_.key_rows == nullptr && bias.column == SizeOf(bias.dtype);
  if (is_row && t_.query_rows == nullptr && bias.dtype == DType::kF32 && queries == kPanel) {
    const int64_t row = t_.first + first_ + panel * kPanel;
    return Transpose(reinterpret_cast<const float*>(bias.At(row, part.first)),
                     bias.row / static_cast<int64_t>(sizeof(float)), kPanel, part.keys, space_.bias,
                     kPanel);
  }
  for (int64_t i = 0; i < kPanel; ++i) {
    float* to = space_.rows + i * kTile;
    const int64_t row = i < queries ? t_.QueryRow(first_ + panel * kPanel + i) : -1;
    if (row < 0) {
      std::fill_n(to, kTile, 0.0f);
    } else if (is_row) {
      Widen(bias.dtype, bias.At(row, part.first), part.keys, to);
    } else {
      for (int64_t key = 0; key < part.keys; ++key) {
        to[key] = BiasOf(row, t_.KeyRow(part.first + key));
      }
    }
  }
  Transpose(space_.rows, kTile, kPanel, part.keys, space_.bias, kPanel);
}

inline uint64_t ScoreTerms::Sees(const KeyPart& part, int64_t key) const {
  uint64_t word = part.Sees(key);
  if (t_.terms.bias.data == nullptr) return word;
  const int64_t row = t_.KeyRow(part.first + key);
  for (int64_t i = 0; i < queries_; ++i) {
    if (BiasOf(t_.QueryRow(first_ + i), row) == kMinusInf) word &= ~(uint64_t{1} << i);
  }
  return word;
}

// A row of scores becomes f(vector, first lane) of each of its vectors.
template <class F>
HWY_INLINE void ForVectors(float* row, const F& f) {
  const DF d;
  for (int64_t x = 0; x < kPanel; x += kLanes) {
    hn::StoreU(f(hn::LoadU(d, row + x), x), d, row + x);
  }
}

inline void ScoreTerms::Cap(const KeyPart& part, float* scores) const {
  const DF d;
  const auto cap = static_cast<float>(t_.terms.params.softcap);
  const VF inverse = hn::Set(d, 1 / cap), factor = hn::Set(d, cap);
  for (int64_t key = part.seen.begin; key < part.seen.end; ++key) {
    ForVectors(scores + key * kPanel,
               [&](VF t, int64_t) HWY_ATTR { return WithCap(t, inverse, factor).x; });
  }
}

inline void ScoreTerms::AddAlibi(const KeyPart& part, int64_t panel, float* scores) const {
  const DF d;
  const hn::RebindToSigned<DF> di;
  const VF slope = hn::Set(d, *t_.terms.slope);
  for (int64_t key = part.seen.begin; key < part.seen.end; ++key) {
    const auto row = hn::Set(di, static_cast<int32_t>(t_.KeyRow(part.first + key)));
    ForVectors(scores + key * kPanel, [&](VF s, int64_t x) HWY_ATTR {
      const int64_t at = panel * kPanel + x;
      const VF distance =
          AlibiDistance(hn::LoadU(di, position_ + at), row, hn::LoadU(d, beyond_ + at));
      return WithAlibi(s, distance, slope);
    });
  }
}

// Adds the constants of the pattern.
inline void ScoreTerms::AddConstants(const KeyPart& part, int64_t panel, float* scores) const {
  const DF d;
  if (t_.pattern == nullptr) return;
  const bool has_key_bias = !t_.pattern->key_bias.empty();
  for (int64_t key = part.seen.begin; has_key_bias && key < part.seen.end; ++key) {
    const VF added = hn::Set(d, t_.pattern->key_bias[part.first + key]);
    ForVectors(scores + key * kPanel, [&](VF s, int64_t) HWY_ATTR { return hn::Add(s, added); });
  }
  if (part.terms == nullptr || part.terms->bias.empty()) return;
  for (int64_t key = part.seen.begin; key < part.seen.end; ++key) {
    const float* added = part.terms->bias.data() + key * kTile + panel * kPanel;
    ForVectors(scores + key * kPanel,
               [&](VF s, int64_t x) HWY_ATTR { return hn::Add(s, hn::LoadU(d, added + x)); });
  }
}

inline void ScoreTerms::AddBias(const KeyPart& part, float* scores) const {
  const DF d;
  for (int64_t key = part.seen.begin; key < part.seen.end; ++key) {
    const float* bias = space_.bias + key * kPanel;
    ForVectors(scores + key * kPanel,
               [&](VF s, int64_t x) HWY_ATTR { return WithBias(s, hn::LoadU(d, bias + x)); });
  }
}

inline void ScoreTerms::Hide(const KeyPart& part, int64_t panel, float* scores) const {
  const DF d;
  const VF hidden = hn::Set(d, kMinusInf);
  for (int64_t key = part.seen.begin; key < part.seen.end; ++key) {
    const uint64_t word = part.Sees(key) >> (panel * kPanel);
    ForVectors(scores + key * kPanel, [&](VF s, int64_t x) HWY_ATTR {
      return hn::IfThenElse(LaneMask(word >> x), s, hidden);
    });
  }
}

inline void ScoreTerms::Weigh(const KeyPart& part, int64_t panel, float* scores,
                              float* seen) const {
  const DF d;
  const VF hidden = hn::Set(d, kMinusInf), one = hn::Set(d, 1.0f);
  const bool has_bias = t_.terms.bias.data != nullptr;
  const Weighting weighting = t_.terms.params.weighting;
  for (int64_t key = part.seen.begin; key < part.seen.end; ++key) {
    const uint64_t word = part.Sees(key) >> (panel * kPanel);
    ForVectors(scores + key * kPanel, [&](VF s, int64_t x) HWY_ATTR {
      auto sees = LaneMask(word >> x);
      if (has_bias) {
        const VF bias = hn::LoadU(d, space_.bias + key * kPanel + x);
        sees = hn::AndNot(hn::Eq(bias, hidden), sees);
      }
      const VF count = hn::LoadU(d, seen + x);
      hn::StoreU(hn::Add(count, hn::IfThenElseZero(sees, one)), d, seen + x);
      return hn::IfThenElseZero(sees, Weight(weighting, s));
    });
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
