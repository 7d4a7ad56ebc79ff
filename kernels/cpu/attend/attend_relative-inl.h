// The relative term of a tile of queries in the forward of attend: q_rel_i . r_delta.
#if defined(ATTND_CPU_ATTEND_RELATIVE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_ATTEND_RELATIVE_INL_H_
#undef ATTND_CPU_ATTEND_RELATIVE_INL_H_
#else
#define ATTND_CPU_ATTEND_RELATIVE_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/attend/attend_item.h"
#include "kernels/cpu/attend/key_part-inl.h"
#include "kernels/cpu/simd/convert-inl.h"
#include "kernels/cpu/simd/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// One product of the queries of a panel with the rows of r at all distances from a tile of keys,
// from which each pair takes its own (Dai et al. 2019, appendix B, without the shifted copy).
// Between rows in natural order there are kTile + kPanel - 1 distances; a tile of keys that comes
// next needs kTile new ones, the rest is kept. Distances below 0 belong to invisible pairs, unless
// the pattern shows keys after a query.
class RelativeScores {
 public:
  // `position` [kTile] of the queries; lanes without a query have that of the last one, so that no
  // range of distances widens.
  template <class Take>
  RelativeScores(const AttendItem& item, int64_t first, int64_t queries, const int32_t* position,
                 const Take& take)
      : t_(item),
        first_(first),
        queries_(queries),
        position_(position),
        q_relt_(take(given() ? kTile * item.D : 0)),
        products_(take(given() ? kRelativeRows * kTile : 0)) {}

  bool given() const { return t_.terms.r.data != nullptr; }
  // `rows` is space for a panel of queries.
  void LoadQueries(float* rows);
  // Writes the term to the scores [key][kPanel] of the keys that the panel sees.
  void Load(const KeyPart& part, int64_t panel, float* scores);

 private:
  // Of a panel: its products at distances [begin, end) are kept, that of `origin` in row 0.
  struct Kept {
    int64_t begin = 0, end = 0, origin = 0;
  };

  int64_t PanelQueries(int64_t panel) const { return std::min(kPanel, queries_ - panel * kPanel); }
  int64_t PanelLanes(int64_t panel) const { return RoundUp(PanelQueries(panel), kLanes); }
  bool IsInOrder(const KeyPart& part) const;
  SlotRange Needed(const KeyPart& part, int64_t panel, int64_t apart) const;
  void Prepare(SlotRange needed, int64_t apart, int64_t panel);
  void Multiply(SlotRange distances, int64_t panel);
  void MultiplyRows(int64_t distance, int64_t n, int64_t panel, float* to) const;
  void Shear(const KeyPart& part, int64_t panel, int64_t apart, float* scores) const;
  void LoadGathered(const KeyPart& part, int64_t panel, float* scores) const;

  float* Products(int64_t panel) const { return products_ + panel * kRelativeRows * kPanel; }
  // Where a panel keeps the product of a distance.
  float* ProductOf(int64_t distance, int64_t panel) const {
    static_assert((kRelativeRows & (kRelativeRows - 1)) == 0);
    const int64_t row = (distance - kept_[panel].origin) & (kRelativeRows - 1);
    return Products(panel) + row * kPanel;
  }

  const AttendItem& t_;
  int64_t first_, queries_;
  const int32_t* position_;
  bool queries_in_order_ = true;
  Kept kept_[kTile / kPanel];
  float* q_relt_;    // [panel][D][kPanel], times query_scale
  float* products_;  // [panel][kRelativeRows][kPanel]
};

inline void RelativeScores::LoadQueries(float* rows) {
  for (int64_t i = 1; t_.query_rows != nullptr && i < queries_; ++i) {
    const bool follows = t_.QueryRow(first_ + i) == t_.QueryRow(first_ + i - 1) + 1;
    queries_in_order_ = queries_in_order_ && follows && t_.QueryRow(first_ + i) > 0;
  }
  for (int64_t panel = 0; panel * kPanel < queries_; ++panel) {
    std::fill_n(rows, kPanel * t_.D, 0.0f);
    for (int64_t i = 0; i < PanelQueries(panel); ++i) {
      const int64_t row = t_.QueryRow(first_ + panel * kPanel + i);
      if (row < 0) continue;
      Widen(t_.terms.q_rel.dtype, t_.terms.q_rel.Row(row), t_.D, rows + i * t_.D, t_.query_scale);
    }
    Transpose(rows, t_.D, kPanel, t_.D, q_relt_ + panel * t_.D * kPanel, kPanel);
  }
}

inline void RelativeScores::Load(const KeyPart& part, int64_t panel, float* scores) {
  if (!queries_in_order_ || !IsInOrder(part)) {
    kept_[panel] = {};
    return LoadGathered(part, panel, scores);
  }
  const int64_t query = t_.QueryRow(first_ + panel * kPanel) + t_.terms.offset;
  const int64_t apart = query - t_.KeyRow(part.first);  // distance of the first query and key
  Prepare(Needed(part, panel, apart), apart, panel);
  Shear(part, panel, apart, scores);
}

inline bool RelativeScores::IsInOrder(const KeyPart& part) const {
  if (t_.key_rows == nullptr) return true;
  const int32_t* rows = t_.key_rows + part.first;
  for (int64_t key = 1; key < part.keys; ++key) {
    if (rows[key] != rows[0] + key) return false;
  }
  return rows[0] >= 0;
}

// The distances of all visible pairs.
inline SlotRange RelativeScores::Needed(const KeyPart& part, int64_t panel, int64_t apart) const {
  const int64_t queries = PanelQueries(panel);
  SlotRange needed = {apart - part.seen.end + 1, apart + queries - part.seen.begin};
  if (!part.hides()) return needed;
  std::swap(needed.begin, needed.end);
  for (int64_t s = 0; s * kStrip < queries; ++s) {
    const SlotRange keys = part.strips[s];
    if (keys.size() == 0) continue;
    const int64_t end = std::min((s + 1) * kStrip, queries);
    needed.begin = std::min(needed.begin, apart + s * kStrip - keys.end + 1);
    needed.end = std::max(needed.end, apart + end - keys.begin);
  }
  return needed;
}

inline void RelativeScores::Prepare(SlotRange needed, int64_t apart, int64_t panel) {
  Kept& kept = kept_[panel];
  const bool continues =
      (apart - kept.origin) % kLanes == 0 && kept.begin <= needed.end && needed.end <= kept.end;
  if (!continues) {
    const int64_t end = apart - FloorDiv(apart - needed.end, kLanes) * kLanes;
    kept = {end, end, apart};
  }
  if (needed.begin >= kept.begin) return;
  // Whole blocks of rows: a remainder would take as long.
  const int64_t begin = kept.end - RoundUp(kept.end - needed.begin, kLanes);
  Multiply({begin, kept.begin}, panel);
  kept.begin = begin;
  kept.end = std::min(kept.end, kept.begin + kRelativeRows);
}

inline void RelativeScores::Multiply(SlotRange distances, int64_t panel) {
  const float* end = Products(panel) + kRelativeRows * kPanel;
  while (distances.size() > 0) {
    float* to = ProductOf(distances.begin, panel);
    const int64_t n = std::min(distances.size(), (end - to) / kPanel);
    MultiplyRows(distances.begin, n, panel, to);
    distances.begin += n;
  }
}

// Products of distances [distance, distance + n) to rows from `to` on. Beyond the rows of r they
// are those of the first or the last one.
inline void RelativeScores::MultiplyRows(int64_t distance, int64_t n, int64_t panel,
                                         float* to) const {
  const HeadRows& r = t_.terms.r;
  const int64_t last = t_.terms.distances - 1;
  const int64_t first = std::clamp<int64_t>(distance, 0, last);
  const int64_t count = std::clamp<int64_t>(distance + n - 1, 0, last) - first + 1;
  const int64_t at = std::clamp<int64_t>(first - distance, 0, n - 1);
  const Broadcast rows = {reinterpret_cast<const float*>(r.Row(first)),
                          r.stride / static_cast<int64_t>(sizeof(float)), 1};
  PanelGemm<Start::kZero>(count, PanelLanes(panel), t_.D, rows, q_relt_ + panel * t_.D * kPanel,
                          to + at * kPanel);
  for (int64_t i = 0; i < at; ++i) std::copy_n(to + at * kPanel, kPanel, to + i * kPanel);
  const float* repeated = to + (at + count - 1) * kPanel;
  for (int64_t i = at + count; i < n; ++i) std::copy_n(repeated, kPanel, to + i * kPanel);
}

// Lane l of x[i] becomes that of x[i + l modulo 2 kStep], for i < kLanes - 1 + kStep.
template <int64_t kStep>
HWY_INLINE void ShiftLanes(VF* x) {
  if constexpr (kStep > 0) {
    const DF d;
    const hn::RebindToSigned<DF> di;
    const auto bit = hn::Set(di, static_cast<int32_t>(kStep));
    const auto moves = hn::RebindMask(d, hn::TestBit(hn::Iota(di, 0), bit));
#pragma GCC unroll 32
    for (int64_t i = 0; i < kLanes - 1 + kStep; ++i)
      x[i] = hn::IfThenElse(moves, x[i + kStep], x[i]);
    ShiftLanes<kStep / 2>(x);
  }
}

// Row i of `to` gets lane l from row kLanes - 1 - i + l of the 2 kLanes - 1 rows that start with
// row 1 of `low` and continue with row 0 of `high`.
HWY_NOINLINE HWY_MAYBE_UNUSED static void ShearBlock(const float* low, const float* high,
                                                     float* to) {
  const DF d;
  VF x[2 * kLanes - 1];
#pragma GCC unroll 32
  for (int64_t i = 0; i < 2 * kLanes - 1; ++i) {
    x[i] = hn::LoadU(d, i < kLanes - 1 ? low + (i + 1) * kPanel : high + (i + 1 - kLanes) * kPanel);
  }
  ShiftLanes<kLanes / 2>(x);
#pragma GCC unroll 16
  for (int64_t i = 0; i < kLanes; ++i) hn::StoreU(x[kLanes - 1 - i], d, to + i * kPanel);
}

// Each pair takes the product at its distance, in blocks of kLanes keys and queries.
inline void RelativeScores::Shear(const KeyPart& part, int64_t panel, int64_t apart,
                                  float* scores) const {
  for (int64_t x = 0; x < PanelLanes(panel); x += kLanes) {
    const SlotRange keys = part.is_even ? part.seen : part.strips[x / kStrip];
    for (int64_t key = keys.begin / kLanes * kLanes; key < keys.end; key += kLanes) {
      const int64_t distance = apart + x - key;
      ShearBlock(ProductOf(distance - kLanes, panel) + x, ProductOf(distance, panel) + x,
                 scores + key * kPanel + x);
    }
  }
}

// The same where slots are not in natural order, kRelativeRows distances at a time.
inline void RelativeScores::LoadGathered(const KeyPart& part, int64_t panel, float* scores) const {
  const DF d;
  const hn::RebindToSigned<DF> di;
  const int32_t last = static_cast<int32_t>(t_.terms.distances - 1);
  const int32_t* position = position_ + panel * kPanel;
  const auto [nearest, farthest] = std::minmax_element(position, position + kPanel);
  int64_t low = last, high = 0;
  for (int64_t key = part.seen.begin; key < part.seen.end; ++key) {
    std::fill_n(scores + key * kPanel, kPanel, 0.0f);
    const int64_t row = t_.KeyRow(part.first + key);
    if (row < 0) continue;
    low = std::min(low, std::clamp<int64_t>(*nearest - row, 0, last));
    high = std::max(high, std::clamp<int64_t>(*farthest - row, 0, last));
  }
  const float* products = Products(panel);
  for (int64_t from = low; from <= high; from += kRelativeRows) {
    const int32_t n = static_cast<int32_t>(std::min(kRelativeRows, high - from + 1));
    MultiplyRows(from, n, panel, Products(panel));
    for (int64_t key = part.seen.begin; key < part.seen.end; ++key) {
      const auto row = hn::Set(di, static_cast<int32_t>(t_.KeyRow(part.first + key)));
      for (int64_t x = 0; x < kPanel; x += kLanes) {
        auto distance = hn::Sub(hn::LoadU(di, position + x), row);
        distance = hn::Min(hn::Max(distance, hn::Zero(di)), hn::Set(di, last));
        distance = hn::Sub(distance, hn::Set(di, static_cast<int32_t>(from)));
        const auto outside =
            hn::Or(hn::Lt(distance, hn::Zero(di)), hn::Gt(distance, hn::Set(di, n - 1)));
        const auto at = hn::Add(hn::Mul(hn::IfThenZeroElse(outside, distance),
                                        hn::Set(di, static_cast<int32_t>(kPanel))),
                                hn::Iota(di, static_cast<int32_t>(x)));
        const VF term =
            hn::IfThenZeroElse(hn::RebindMask(d, outside), hn::GatherIndex(d, products, at));
        float* to = scores + key * kPanel + x;
        hn::StoreU(hn::Add(hn::LoadU(d, to), term), d, to);
      }
    }
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
