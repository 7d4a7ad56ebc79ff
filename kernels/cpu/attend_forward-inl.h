// One tile of queries against its visible keys, online softmax, queries in lanes.
#if defined(ATTND_CPU_ATTEND_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_ATTEND_FORWARD_INL_H_
#undef ATTND_CPU_ATTEND_FORWARD_INL_H_
#else
#define ATTND_CPU_ATTEND_FORWARD_INL_H_
#endif

#include <cmath>
#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/attend_tile.h"
#include "kernels/cpu/convert-inl.h"
#include "kernels/cpu/gemm-inl.h"
#include "kernels/cpu/lane_mask-inl.h"
#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// Rows of a tensor as float32: where they lie if that is their type, else widened into `space`
// (`width` floats a row).
HWY_INLINE Rows AsFloat(const HeadRows& from, int64_t first, int64_t count, int64_t width,
                        float* space) {
  if (from.dtype == DType::kF32) {
    return {reinterpret_cast<const float*>(from.Row(first)),
            from.stride / static_cast<int64_t>(sizeof(float))};
  }
  for (int64_t i = 0; i < count; ++i) {
    Widen(from.dtype, from.Row(first + i), width, space + i * width);
  }
  return {space, width};
}

// The online softmax of one tile of queries. Every array keeps queries in panels of kPanel lanes.
class QueryTile {
 public:
  QueryTile(const AttendTile& tile, float* scratch) : t_(tile) {
    const auto take = [&](int64_t floats) {
      float* taken = scratch;
      scratch += RoundUpTo(floats, 16);
      return taken;
    };
    qt_ = take(t_.D * kTile);
    scores_ = take(kBlockTiles * kTile * kTile);
    sum_vp_ = take(t_.Dv * kTile);
    max_ = take(kTile);
    sum_ = take(kTile);
    shrink_ = take(kTile);
    k_space_ = take(kTile * std::max(t_.D, t_.Dv));
    v_space_ = take(kTile * std::max(t_.D, t_.Dv));
    panels_ = CeilDiv(t_.queries, kPanel);
  }

  void Run() {
    if (t_.queries > 0) {
      LoadQueries();
      Block block;
      ForEachVisible(t_.pattern, t_.pattern == nullptr ? nullptr : &t_.pattern->by_query, t_.row,
                     CeilDiv(t_.keys, kTile), [&](VisibleTile tile) {
                       block.Add(tile, t_.keys);
                       if (block.count == kBlockTiles) Process(&block);
                     });
      if (block.count > 0) Process(&block);
    }
    Store();
  }

 private:
  // Tiles whose scores are normalised together.
  struct Block {
    int count = 0;
    int64_t keys = 0;
    struct Part {
      int64_t first, keys, offset;  // first key, how many, where its rows of scores start
      const TileMask* mask;
    } parts[kBlockTiles];

    void Add(VisibleTile tile, int64_t all_keys) {
      const int64_t first = tile.index * kTile;
      const int64_t n = std::min(kTile, all_keys - first);
      parts[count++] = {first, n, keys, tile.mask};
      keys += n;
    }
  };

  void LoadQueries();
  void Process(Block* block);
  void Mask(const Block::Part& part);
  bool Normalise(int64_t panel, int64_t keys);
  void AddValues(const Block::Part& part, bool shrinks);
  void AddVisible(const Block::Part& part, int64_t key, Rows v);
  void Store();

  float* Scores(int64_t panel, int64_t key) {
    return scores_ + (panel * kBlockTiles * kTile + key) * kPanel;
  }

  const AttendTile& t_;
  int64_t panels_;
  bool has_values_ = false;
  float* qt_;                    // [panel][D][kPanel], times scale log2(e)
  float* scores_;                // [panel][key of the block][kPanel]; scores, then weights
  float* sum_vp_;                // [panel][Dv][kPanel]
  float *max_, *sum_, *shrink_;  // [kTile]
  float *k_space_, *v_space_;
};

inline void QueryTile::LoadQueries() {
  const DF d;
  float* rows = v_space_;
  for (int64_t i = 0; i < t_.queries; ++i) {
    Widen(t_.q.dtype, t_.q.Row(i), t_.D, rows + i * t_.D, t_.scale_log2e);
  }
  // Lanes without a query compute something finite that nobody reads.
  std::fill(rows + t_.queries * t_.D, rows + panels_ * kPanel * t_.D, 0.0f);
  for (int64_t p = 0; p < panels_; ++p) {
    Transpose(rows + p * kPanel * t_.D, t_.D, kPanel, t_.D, qt_ + p * t_.D * kPanel, kPanel);
  }
  for (int64_t i = 0; i < panels_ * kPanel; i += kLanes) {
    hn::StoreU(hn::Set(d, kMinusInf), d, max_ + i);
    hn::StoreU(hn::Zero(d), d, sum_ + i);
  }
}

inline void QueryTile::Process(Block* block) {
  for (int i = 0; i < block->count; ++i) {
    const auto& part = block->parts[i];
    const Rows k = AsFloat(t_.k, part.first, part.keys, t_.D, k_space_);
    PanelGemm<Start::kZero>(part.keys, panels_, t_.D, {k.data, k.stride, 1}, qt_, t_.D * kPanel,
                            Scores(0, part.offset), kBlockTiles * kTile * kPanel);
    if (part.mask != nullptr) Mask(part);
  }
  bool shrinks = false;
  for (int64_t p = 0; p < panels_; ++p) shrinks |= Normalise(p, block->keys);
  for (int i = 0; i < block->count; ++i) {
    AddValues(block->parts[i], shrinks && i == 0);
  }
  *block = Block();
}

// Selects, so that whatever an invisible pair computed is gone.
inline void QueryTile::Mask(const Block::Part& part) {
  const DF d;
  const VF hidden = hn::Set(d, kMinusInf);
  for (int64_t p = 0; p < panels_; ++p) {
    for (int64_t key = 0; key < part.keys; ++key) {
      const uint64_t word = (*part.mask)[key] >> (p * kPanel);
      float* row = Scores(p, part.offset + key);
      for (int64_t x = 0; x < kPanel; x += kLanes) {
        hn::StoreU(hn::IfThenElse(LaneMask(word >> x), hn::LoadU(d, row + x), hidden), d, row + x);
      }
    }
  }
}

// Turns the scores of one panel into weights relative to the new maximum, adds them to the sum and
// leaves in shrink_ what older sums must be multiplied with. False when that is 1 everywhere.
inline bool QueryTile::Normalise(int64_t panel, int64_t keys) {
  const DF d;
  bool shrinks = false;
  for (int64_t x = 0; x < kPanel; x += 2 * kLanes) {
    float* at = Scores(panel, 0) + x;
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

inline void QueryTile::AddValues(const Block::Part& part, bool shrinks) {
  Rows v = AsFloat(t_.v, part.first, part.keys, t_.Dv, v_space_);
  // A weight of 0 times a value of NaN or Inf is NaN: such rows leave the product and are added
  // where they are visible only. In tiles without a mask everybody sees them.
  uint64_t odd = 0;
  const Rows original = v;
  if (part.mask != nullptr) {
    for (int64_t key = 0; key < part.keys; ++key) {
      if (HasNonFinite(v.data + key * v.stride, t_.Dv)) odd |= uint64_t{1} << key;
    }
  }
  float* clean = odd == 0 ? nullptr : k_space_;
  if (clean != nullptr) {
    for (int64_t key = 0; key < part.keys; ++key) {
      const float* row = v.data + key * v.stride;
      if ((odd >> key & 1) != 0) {
        std::fill_n(clean + key * t_.Dv, t_.Dv, 0.0f);
      } else {
        std::copy_n(row, t_.Dv, clean + key * t_.Dv);
      }
    }
    v = {clean, t_.Dv};
  }
  const Broadcast vt = {v.data, 1, v.stride};
  const float* weights = Scores(0, part.offset);
  constexpr int64_t kStride = kBlockTiles * kTile * kPanel;
  const int64_t panel = t_.Dv * kPanel;
  if (!has_values_) {
    PanelGemm<Start::kZero>(t_.Dv, panels_, part.keys, vt, weights, kStride, sum_vp_, panel);
  } else if (shrinks) {
    PanelGemm<Start::kScale>(t_.Dv, panels_, part.keys, vt, weights, kStride, sum_vp_, panel,
                             shrink_);
  } else {
    PanelGemm<Start::kAdd>(t_.Dv, panels_, part.keys, vt, weights, kStride, sum_vp_, panel);
  }
  has_values_ = true;
  for (int64_t key = 0; key < part.keys; ++key) {
    if ((odd >> key & 1) != 0) AddVisible(part, key, original);
  }
}

// One key to the queries that see it.
inline void QueryTile::AddVisible(const Block::Part& part, int64_t key, Rows v) {
  const DF d;
  for (int64_t p = 0; p < panels_; ++p) {
    for (int64_t x = 0; x < kPanel; x += kLanes) {
      const auto sees = LaneMask((*part.mask)[key] >> (p * kPanel + x));
      const VF weight = hn::LoadU(d, Scores(p, part.offset + key) + x);
      for (int64_t j = 0; j < t_.Dv; ++j) {
        float* at = sum_vp_ + (p * t_.Dv + j) * kPanel + x;
        const VF sum = hn::LoadU(d, at);
        const VF value = hn::Set(d, v.data[key * v.stride + j]);
        hn::StoreU(hn::IfThenElse(sees, hn::MulAdd(weight, value, sum), sum), d, at);
      }
    }
  }
}

inline void QueryTile::Store() {
  float* rows = v_space_;
  for (int64_t p = 0; has_values_ && p < panels_; ++p) {
    const int64_t first = p * kPanel, count = std::min(kPanel, t_.queries - first);
    Transpose(sum_vp_ + p * t_.Dv * kPanel, kPanel, t_.Dv, kPanel, rows, t_.Dv);
    for (int64_t i = 0; i < count; ++i) {
      const float sum = sum_[first + i];
      const bool sees = sum != 0.0f;
      if (!sees) std::fill_n(rows + i * t_.Dv, t_.Dv, 0.0f);
      Narrow(t_.out.dtype, rows + i * t_.Dv, t_.Dv, t_.out.Row(first + i),
             sees ? 1.0f / sum : 0.0f);
      const double log2_sum = sees ? std::log2(static_cast<double>(sum)) : 0.0;
      constexpr double kLn2 = 0.69314718055994530942;
      t_.lse.Scalar(first + i) =
          sees ? static_cast<float>((max_[first + i] + log2_sum) * kLn2) : kMinusInf;
    }
  }
  for (int64_t i = has_values_ ? t_.queries : 0; i < t_.rows; ++i) {
    std::memset(t_.out.Row(i), 0, t_.Dv * SizeOf(t_.out.dtype));
    t_.lse.Scalar(i) = kMinusInf;
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
