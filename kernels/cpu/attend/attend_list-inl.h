// A row against the rows of its list: scores and weighted sums.
#if defined(ATTND_CPU_ATTEND_LIST_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_ATTEND_LIST_INL_H_
#undef ATTND_CPU_ATTEND_LIST_INL_H_
#else
#define ATTND_CPU_ATTEND_LIST_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "kernels/core/run_control.h"
#include "kernels/cpu/attend/attend_list.h"
#include "kernels/cpu/attend/weighting-inl.h"
#include "kernels/cpu/simd/convert-inl.h"
#include "kernels/cpu/simd/gemm-inl.h"
#include "kernels/cpu/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Rows of one tensor as whole vectors of float32: where they lie, or copied to `space`.
class ListedRows {
 public:
  // `space`: kListChunk * ListStride(width) floats.
  ListedRows(const HeadRows& rows, int64_t width, float* space)
      : rows_(rows),
        width_(width),
        in_place_(rows.dtype == DType::kF32 && width % kLanes == 0),
        space_(space) {
    if (!in_place_) std::fill_n(space, kListChunk * ListStride(width), 0.0f);
  }

  // The n rows of `ids`, valid until the next call; the last one again up to a whole vector of
  // pointers.
  const float* const* Load(const int32_t* ids, int64_t n) {
    for (int64_t t = 0; t < n; ++t) {
      if (in_place_) {
        at_[t] = reinterpret_cast<const float*>(rows_.Row(ids[t]));
      } else {
        float* to = space_ + t * ListStride(width_);
        Widen(rows_.dtype, rows_.Row(ids[t]), width_, to);
        at_[t] = to;
      }
    }
    for (int64_t t = n; t < RoundUp(n, 4); ++t) at_[t] = at_[n - 1];
    return at_;
  }

 private:
  const HeadRows rows_;
  const int64_t width_;
  const bool in_place_;
  float* const space_;
  const float* at_[kListChunk];
};

// In each block of four lanes: the sums of that block of a, of b, of c and of d.
HWY_INLINE VF SumsOfFour(VF a, VF b, VF c, VF d) {
  const DF df;
  const hn::Repartition<double, DF> dd;
  const VF ab = hn::Add(hn::InterleaveLower(df, a, b), hn::InterleaveUpper(df, a, b));
  const VF cd = hn::Add(hn::InterleaveLower(df, c, d), hn::InterleaveUpper(df, c, d));
  const auto pairs_ab = hn::BitCast(dd, ab), pairs_cd = hn::BitCast(dd, cd);
  return hn::Add(hn::BitCast(df, hn::InterleaveLower(dd, pairs_ab, pairs_cd)),
                 hn::BitCast(df, hn::InterleaveUpper(dd, pairs_ab, pairs_cd)));
}

// The sum of the blocks of x in the lower block, of y in the upper half's. Always in one order, so
// that a dot product does not depend on its place in a list.
HWY_INLINE VF SumHalves(VF x, VF y) {
  const DF d;
  return hn::Add(hn::ConcatLowerLower(d, y, x), hn::ConcatUpperUpper(d, y, x));
}

// The dot products of `own` with n rows, in float32. `dots` has room for a vector more. REQUIRES:
// rows as ListedRows::Load returns them; own is zero beyond `width` up to a whole vector.
HWY_INLINE void Dots(const float* own, const float* const* rows, int64_t n, int64_t width,
                     float* dots) {
  const DF d;
  int64_t t = 0;
  for (; t + kLanes <= n; t += kLanes) {
    VF sum[kLanes];
#pragma GCC unroll 16
    for (int64_t i = 0; i < kLanes; ++i) sum[i] = hn::Zero(d);
    for (int64_t x = 0; x < width; x += kLanes) {
      const VF element = hn::LoadU(d, own + x);
#pragma GCC unroll 16
      for (int64_t i = 0; i < kLanes; ++i) {
        sum[i] = hn::MulAdd(element, hn::LoadU(d, rows[t + i] + x), sum[i]);
      }
    }
    VF blocks[kLanes / 4];
#pragma GCC unroll 4
    for (int64_t i = 0; i < kLanes / 4; ++i) {
      blocks[i] = SumsOfFour(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]);
    }
    VF all = blocks[0];
    if constexpr (kLanes == 8) all = SumHalves(blocks[0], blocks[kLanes / 4 - 1]);
    if constexpr (kLanes == 16) {
      const VF even = SumHalves(blocks[0], blocks[kLanes / 8]);
      const VF odd = SumHalves(blocks[kLanes / 16], blocks[kLanes / 4 - 1]);
      all = hn::OddEvenBlocks(hn::Add(odd, hn::SwapAdjacentBlocks(odd)),
                              hn::Add(even, hn::SwapAdjacentBlocks(even)));
    }
    hn::StoreU(all, d, dots + t);
  }
  for (; t < n; t += 4) {
    VF sum[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    for (int64_t x = 0; x < width; x += kLanes) {
      const VF element = hn::LoadU(d, own + x);
#pragma GCC unroll 4
      for (int64_t i = 0; i < 4; ++i) {
        sum[i] = hn::MulAdd(element, hn::LoadU(d, rows[t + i] + x), sum[i]);
      }
    }
    VF all = SumsOfFour(sum[0], sum[1], sum[2], sum[3]);
    if constexpr (kLanes >= 8) all = SumHalves(all, all);
    if constexpr (kLanes == 16) all = hn::Add(all, hn::SwapAdjacentBlocks(all));
    hn::StoreU(all, d, dots + t);
  }
}

// Columns [0, kV kLanes) of: to += sum of weights[t] rows[t].
template <int kV>
HWY_INLINE void AddColumns(const float* weights, const float* const* rows, int64_t n, int64_t x,
                           float* to) {
  const DF d;
  VF sum[kV];
#pragma GCC unroll 8
  for (int i = 0; i < kV; ++i) sum[i] = hn::LoadU(d, to + x + i * kLanes);
  for (int64_t t = 0; t < n; ++t) {
    const VF weight = hn::Set(d, weights[t]);
    const float* row = rows[t] + x;
#pragma GCC unroll 8
    for (int i = 0; i < kV; ++i) {
      sum[i] = hn::MulAdd(weight, hn::LoadU(d, row + i * kLanes), sum[i]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kV; ++i) hn::StoreU(sum[i], d, to + x + i * kLanes);
}

HWY_INLINE void AddWeighted(const float* weights, const float* const* rows, int64_t n,
                            int64_t width, float* to) {
  int64_t x = 0;
  for (; x + 8 * kLanes <= width; x += 8 * kLanes) AddColumns<8>(weights, rows, n, x, to);
  for (; x + 4 * kLanes <= width; x += 4 * kLanes) AddColumns<4>(weights, rows, n, x, to);
  for (; x < width; x += kLanes) AddColumns<1>(weights, rows, n, x, to);
}

// Some pairs of one row. Arrays have room for a vector more.
struct PairChunk {
  static constexpr int64_t kRoom = kListChunk + 16;
  const int32_t* ids = nullptr;  // of the other side
  int64_t n = 0;
  float scores[kRoom];
  float keeps[kRoom];  // dx / dt of a cap
  double distance[kRoom];
  float bias[kRoom];
  int32_t kept[kRoom];
};

// Turns dot products of one head into scores, forward and backward alike.
class ListScores {
 public:
  explicit ListScores(const ListHead& head)
      : head_(head), scale_(static_cast<float>(head.params.scale)) {}

  bool has_cap() const { return head_.params.softcap > 0; }

  // The pairs of row `own` with `ids` that no bias hides. `by_query`: own is a query.
  void Take(bool by_query, int64_t own, const int32_t* ids, int64_t n, PairChunk* c) const {
    c->ids = ids;
    c->n = n;
    if (head_.bias.data != nullptr) {
      c->ids = c->kept;
      c->n = 0;
      for (int64_t t = 0; t < n; ++t) {
        const float bias = by_query ? BiasOf(own, ids[t]) : BiasOf(ids[t], own);
        if (bias == -std::numeric_limits<float>::infinity()) continue;
        c->kept[c->n] = ids[t];
        c->bias[c->n++] = bias;
      }
    }
    if (head_.slope == nullptr) return;
    for (int64_t t = 0; t < c->n; ++t) {
      const int64_t apart = by_query ? own - c->ids[t] : c->ids[t] - own;
      c->distance[t] = static_cast<double>(std::abs(apart + head_.offset));
    }
  }

  // Dot products to scores.
  void Score(PairChunk* c) const {
    const DF d;
    const VF scale = hn::Set(d, scale_);
    for (int64_t t = 0; t < c->n; t += kLanes) {
      hn::StoreU(hn::Mul(scale, hn::LoadU(d, c->scores + t)), d, c->scores + t);
    }
    if (has_cap()) Cap(c);
    for (int64_t t = 0; head_.bias.data != nullptr && t < c->n; t += kLanes) {
      const VF score = WithBias(hn::LoadU(d, c->scores + t), hn::LoadU(d, c->bias + t));
      hn::StoreU(score, d, c->scores + t);
    }
    if (head_.slope == nullptr) return;
    // Distances are beyond 2^24 where float32 would round them.
    const double slope = *head_.slope;
    for (int64_t t = 0; t < c->n; ++t) {
      c->scores[t] = static_cast<float>(c->scores[t] - slope * c->distance[t]);
    }
  }

 private:
  float BiasOf(int64_t i, int64_t j) const {
    float value;
    Widen(head_.bias.dtype, head_.bias.At(i, j), 1, &value);
    return value;
  }
  void Cap(PairChunk* c) const {
    const DF d;
    const auto cap = static_cast<float>(head_.params.softcap);
    const VF inverse = hn::Set(d, 1 / cap), factor = hn::Set(d, cap);
    for (int64_t t = 0; t < c->n; t += kLanes) {
      const Capped capped = WithCap(hn::LoadU(d, c->scores + t), inverse, factor);
      hn::StoreU(capped.slope, d, c->keeps + t);
      hn::StoreU(capped.x, d, c->scores + t);
    }
  }

  const ListHead& head_;
  const float scale_;
};

// Visits rows [first, first + rows) of a list in blocks of `block` of the other side: visit(row,
// ids, n) with up to kListChunk pairs. `next`: room for `rows` places.
template <class Visit>
HWY_INLINE void EachListed(const PairList& list, int64_t first, int64_t rows, int64_t others,
                           int64_t block, int64_t* next, const Visit& visit) {
  std::copy_n(list.begin.data() + first, rows, next);
  const int32_t* ids = list.columns.data();
  constexpr int64_t kPairs = 1024;  // between check points; a row without pairs counts as one
  int64_t pairs = 0;
  for (int64_t end = block;; end += block) {
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t stop = list.begin[first + r + 1];
      while (next[r] < stop && ids[next[r]] < end) {
        const int64_t from = next[r], most = std::min(stop, from + kListChunk);
        int64_t to = end >= others ? most : from + 1;
        while (to < most && ids[to] < end) ++to;
        next[r] = to;
        visit(first + r, ids + from, to - from);
        pairs += to - from;
      }
      if (++pairs < kPairs) continue;
      pairs = 0;
      if (CheckPoint()) return;
    }
    if (end >= others) return;
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
