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
#include <limits>

#include "absl/container/inlined_vector.h"
#include "hwy/highway.h"
#include "kernels/cpu/attend_tile.h"
#include "kernels/cpu/convert-inl.h"
#include "kernels/cpu/gemm-inl.h"
#include "kernels/cpu/key_tiles-inl.h"
#include "kernels/cpu/lane_mask-inl.h"
#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// The online softmax of one tile of queries. Every array keeps queries in panels of kPanel lanes.
class QueryTile {
 public:
  // Tile `index` of the item. `scores` is space that the item's tiles share; `take`(floats) returns
  // scratch memory.
  template <class Take>
  QueryTile(const AttendItem& item, int64_t index, float* scores, const Take& take)
      : t_(item),
        first_(index * kTile),
        queries_(std::clamp<int64_t>(item.queries - first_, 0, kTile)),
        panels_(CeilDiv(queries_, kPanel)),
        visible_(item.pattern, &Pattern::by_query, item.row + index,
                 queries_ == 0 ? 0 : CeilDiv(item.keys, kTile)),
        qt_(take(item.D * kTile)),
        scores_(scores),
        sum_vp_(take(item.Dv * kTile)),
        max_(take(kTile)),
        sum_(take(kTile)),
        shrink_(take(kTile)) {}

  void LoadQueries();
  // The next key tile to work on, VisibleTile::kNone after the last.
  int64_t next() const { return visible_.tile().index; }
  // Works on up to kBlockTiles of them.
  void Advance(KeyTiles* keys);
  void Store();

 private:
  // Tiles whose scores are normalised together.
  struct Block {
    int count = 0;
    int64_t keys = 0;
    struct Part {
      int64_t first, keys, offset;  // first key, how many, where its rows of scores start
      const TileMask* mask;
      int slot;
    } parts[kBlockTiles];
  };

  Block NextBlock(KeyTiles* keys);
  void Mask(const Block::Part& part, int64_t panel);
  bool Normalise(int64_t panel, int64_t keys);
  void AddValues(const Block& block, int64_t panel, bool shrinks, KeyTiles* keys);
  void AddVisible(const Block::Part& part, int64_t key, int64_t panel, const float* v);

  float* SumVP(int64_t panel) { return sum_vp_ + panel * t_.Dv * kPanel; }

  const AttendItem& t_;
  int64_t first_, queries_, panels_;
  VisibleTiles visible_;
  bool has_values_ = false;
  float* qt_;                    // [panel][D][kPanel], times scale log2(e)
  float* scores_;                // [key of the block][kPanel]; scores, then weights
  float* sum_vp_;                // [panel][Dv][kPanel]
  float *max_, *sum_, *shrink_;  // [kTile]
};

inline void QueryTile::LoadQueries() {
  const DF d;
  for (int64_t p = 0; p < panels_; ++p) {
    const int64_t first = p * kPanel, count = std::min(kPanel, queries_ - first);
    float* rows = scores_;
    for (int64_t i = 0; i < count; ++i) {
      Widen(t_.q.dtype, t_.q.Row(first_ + first + i), t_.D, rows + i * t_.D, t_.scale_log2e);
    }
    // Lanes without a query compute something finite that nobody reads.
    std::fill(rows + count * t_.D, rows + kPanel * t_.D, 0.0f);
    Transpose(rows, t_.D, kPanel, t_.D, qt_ + p * t_.D * kPanel, kPanel);
  }
  for (int64_t i = 0; i < panels_ * kPanel; i += kLanes) {
    hn::StoreU(hn::Set(d, kMinusInf), d, max_ + i);
    hn::StoreU(hn::Zero(d), d, sum_ + i);
  }
}

inline QueryTile::Block QueryTile::NextBlock(KeyTiles* keys) {
  Block block;
  uint32_t busy = 0;
  for (; block.count < kBlockTiles && !visible_.done(); visible_.Next()) {
    const VisibleTile& tile = visible_.tile();
    const int64_t first = tile.index * kTile, n = std::min(kTile, t_.keys - first);
    const int slot = keys->Prepare(tile.index, busy);
    busy |= 1u << slot;
    block.parts[block.count++] = {first, n, block.keys, tile.mask, slot};
    block.keys += n;
  }
  return block;
}

inline void QueryTile::Advance(KeyTiles* keys) {
  const Block block = NextBlock(keys);
  for (int64_t p = 0; p < panels_; ++p) {
    for (int i = 0; i < block.count; ++i) {
      const Block::Part& part = block.parts[i];
      const Rows k = keys->Keys(part.slot);
      PanelGemm<Start::kZero>(part.keys, t_.D, {k.data, k.stride, 1}, qt_ + p * t_.D * kPanel,
                              scores_ + part.offset * kPanel);
      if (part.mask != nullptr) Mask(part, p);
    }
    const bool shrinks = Normalise(p, block.keys);
    AddValues(block, p, shrinks, keys);
  }
  has_values_ = true;
}

// Selects, so that whatever an invisible pair computed is gone.
inline void QueryTile::Mask(const Block::Part& part, int64_t panel) {
  const DF d;
  const VF hidden = hn::Set(d, kMinusInf);
  for (int64_t key = 0; key < part.keys; ++key) {
    const uint64_t word = (*part.mask)[key] >> (panel * kPanel);
    float* row = scores_ + (part.offset + key) * kPanel;
    for (int64_t x = 0; x < kPanel; x += kLanes) {
      hn::StoreU(hn::IfThenElse(LaneMask(word >> x), hn::LoadU(d, row + x), hidden), d, row + x);
    }
  }
}

// Turns the scores of one panel into weights relative to the new maximum, adds them to the sum and
// leaves in shrink_ what older sums must be multiplied with. False when that is 1 everywhere.
inline bool QueryTile::Normalise(int64_t panel, int64_t keys) {
  const DF d;
  bool shrinks = false;
  for (int64_t x = 0; x < kPanel; x += 2 * kLanes) {
    float* at = scores_ + x;
    const int64_t lane = panel * kPanel + x;
    const VF old0 = hn::LoadU(d, max_ + lane), old1 = hn::LoadU(d, max_ + lane + kLanes);
    VF max0 = old0, max1 = old1;
    for (int64_t key = 0; key < keys; ++key) {
      max0 = hn::Max(hn::LoadU(d, at + key * kPanel), max0);
      max1 = hn::Max(hn::LoadU(d, at + key * kPanel + kLanes), max1);
    }
    hn::StoreU(max0, d, max_ + lane);
    hn::StoreU(max1, d, max_ + lane + kLanes);
    // A lane that has seen nothing: -inf - 0 instead of -inf - -inf.
    const VF hidden = hn::Set(d, kMinusInf);
    max0 = hn::IfThenZeroElse(hn::Eq(max0, hidden), max0);
    max1 = hn::IfThenZeroElse(hn::Eq(max1, hidden), max1);
    const VF shrink0 = Exp2Small(d, hn::Sub(old0, max0));
    const VF shrink1 = Exp2Small(d, hn::Sub(old1, max1));
    hn::StoreU(shrink0, d, shrink_ + lane);
    hn::StoreU(shrink1, d, shrink_ + lane + kLanes);
    VF sum0 = hn::Mul(hn::LoadU(d, sum_ + lane), shrink0);
    VF sum1 = hn::Mul(hn::LoadU(d, sum_ + lane + kLanes), shrink1);
    for (int64_t key = 0; key < keys; ++key) {
      const VF w0 = Exp2Small(d, hn::Sub(hn::LoadU(d, at + key * kPanel), max0));
      const VF w1 = Exp2Small(d, hn::Sub(hn::LoadU(d, at + key * kPanel + kLanes), max1));
      hn::StoreU(w0, d, at + key * kPanel);
      hn::StoreU(w1, d, at + key * kPanel + kLanes);
      sum0 = hn::Add(sum0, w0);
      sum1 = hn::Add(sum1, w1);
    }
    hn::StoreU(sum0, d, sum_ + lane);
    hn::StoreU(sum1, d, sum_ + lane + kLanes);
    const VF one = hn::Set(d, 1.0f);
    shrinks |= !hn::AllTrue(d, hn::And(hn::Eq(shrink0, one), hn::Eq(shrink1, one)));
  }
  return shrinks;
}

inline void QueryTile::AddValues(const Block& block, int64_t panel, bool shrinks, KeyTiles* keys) {
  float* sum = SumVP(panel);
  for (int i = 0; i < block.count;) {
    // Slots side by side are one longer sum.
    const Block::Part& first = block.parts[i];
    int64_t n = first.keys;
    for (++i; i < block.count && block.parts[i].slot == block.parts[i - 1].slot + 1; ++i) {
      n += block.parts[i].keys;
    }
    const Broadcast vt = keys->ValuesT(first.slot);
    const float* weights = scores_ + first.offset * kPanel;
    if (first.offset > 0 || (has_values_ && !shrinks)) {
      PanelGemm<Start::kAdd>(t_.Dv, n, vt, weights, sum);
    } else if (has_values_) {
      PanelGemm<Start::kScale>(t_.Dv, n, vt, weights, sum, shrink_ + panel * kPanel);
    } else {
      PanelGemm<Start::kZero>(t_.Dv, n, vt, weights, sum);
    }
  }
  for (int i = 0; i < block.count; ++i) {
    const Block::Part& part = block.parts[i];
    for (uint64_t odd = keys->hidden_values(part.slot); odd != 0; odd &= odd - 1) {
      const int64_t key = std::countr_zero(odd);
      AddVisible(part, key, panel, keys->Value(part.first + key));
    }
  }
}

// One key to the queries that see it.
inline void QueryTile::AddVisible(const Block::Part& part, int64_t key, int64_t panel,
                                  const float* v) {
  const DF d;
  const uint64_t word = part.mask == nullptr ? ~uint64_t{0} : (*part.mask)[key];
  for (int64_t x = 0; x < kPanel; x += kLanes) {
    const auto sees = LaneMask(word >> (panel * kPanel + x));
    const VF weight = hn::LoadU(d, scores_ + (part.offset + key) * kPanel + x);
    for (int64_t j = 0; j < t_.Dv; ++j) {
      float* at = SumVP(panel) + j * kPanel + x;
      const VF sum = hn::LoadU(d, at);
      hn::StoreU(hn::IfThenElse(sees, hn::MulAdd(weight, hn::Set(d, v[j]), sum), sum), d, at);
    }
  }
}

inline void QueryTile::Store() {
  for (int64_t p = 0; has_values_ && p < panels_; ++p) {
    const int64_t first = p * kPanel, count = std::min(kPanel, queries_ - first);
    float* rows = scores_;
    Transpose(SumVP(p), kPanel, t_.Dv, kPanel, rows, t_.Dv);
    for (int64_t i = 0; i < count; ++i) {
      const float sum = sum_[first + i];
      const bool sees = sum != 0.0f;
      if (!sees) std::fill_n(rows + i * t_.Dv, t_.Dv, 0.0f);
      Narrow(t_.out.dtype, rows + i * t_.Dv, t_.Dv, t_.out.Row(first_ + first + i),
             sees ? 1.0f / sum : 0.0f);
      const double log2_sum = sees ? std::log2(static_cast<double>(sum)) : 0.0;
      constexpr double kLn2 = 0.69314718055994530942;
      t_.lse.Scalar(first_ + first + i) =
          sees ? static_cast<float>((max_[first + i] + log2_sum) * kLn2) : kMinusInf;
    }
  }
  const int64_t rows = std::min(kTile, t_.rows - first_);
  for (int64_t i = has_values_ ? queries_ : 0; i < rows; ++i) {
    std::memset(t_.out.Row(first_ + i), 0, t_.Dv * SizeOf(t_.out.dtype));
    t_.lse.Scalar(first_ + i) = kMinusInf;
  }
}

// The tile that is furthest behind goes next: what it reads, the others have read lately or will
// read soon. Which tiles share an item changes no result.
inline void AttendQueries(const AttendItem& item, float* scratch) {
  const auto take = [&](int64_t floats) {
    float* taken = scratch;
    scratch += RoundUpTo(floats, 16);
    return taken;
  };
  float* scores = take(kPanel * std::max({kBlockTiles * kTile, item.D, item.Dv}));
  KeyTiles keys(item, take);
  absl::InlinedVector<QueryTile, kMaxItemTiles> tiles;
  for (int64_t i = 0; i < CeilDiv(item.rows, kTile); ++i) {
    tiles.emplace_back(item, i, scores, take).LoadQueries();
  }
  const auto behind = [](const QueryTile& a, const QueryTile& b) { return a.next() < b.next(); };
  for (;;) {
    QueryTile& tile = *std::min_element(tiles.begin(), tiles.end(), behind);
    if (tile.next() == VisibleTile::kNone) break;
    tile.Advance(&keys);
  }
  for (QueryTile& tile : tiles) tile.Store();
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
