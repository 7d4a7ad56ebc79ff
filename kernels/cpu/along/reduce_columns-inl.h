// A chunk of columns reduced to two numbers a column.
#if defined(ATTND_CPU_REDUCE_COLUMNS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_REDUCE_COLUMNS_INL_H_
#undef ATTND_CPU_REDUCE_COLUMNS_INL_H_
#else
#define ATTND_CPU_REDUCE_COLUMNS_INL_H_
#endif

#include <algorithm>

#include "hwy/highway.h"
#include "kernels/cpu/along/column_blocks-inl.h"
#include "kernels/cpu/along/row_pieces-inl.h"
#include "kernels/cpu/simd/wide_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Of a sum `value` is used; of a maximum too; of log sum exp the maximum and sum e^(x - maximum);
// of argmax the maximum and its place in the chunk. A dense axis is one column.
struct ColumnResults {
  HWY_ALIGN float value[kWidth];
  HWY_ALIGN float second[kWidth];
};

HWY_NOINLINE HWY_MAYBE_UNUSED static void SumOfColumns(ColumnBlocks& blocks, float* sum) {
  PairwiseSum total;
  for (int64_t b = 0; b < blocks.count(); ++b) {
    std::fill(sum, sum + kWidth, 0.0f);
    FoldRows(blocks[b], sum, [](auto a, auto x, int64_t) HWY_ATTR { return hn::Add(a, x); });
    if (blocks.count() == 1) return;
    total.Add(sum);
  }
  total.Total(sum);
}

// NaN where a column holds one.
HWY_NOINLINE HWY_MAYBE_UNUSED static void MaxOfColumns(ColumnBlocks& blocks, float* most) {
  std::fill(most, most + kWidth, kLeast);
  for (int64_t b = 0; b < blocks.count(); ++b) {
    FoldRows(blocks[b], most, [](auto a, auto x, int64_t) HWY_ATTR {
      return hn::IfThenElse(hn::Or(hn::Gt(x, a), hn::IsNaN(x)), x, a);
    });
  }
}

// sum e^(x - most), with most[c] of column c; 0 for columns of -inf only.
HWY_NOINLINE HWY_MAYBE_UNUSED static void ExpSumOfColumns(ColumnBlocks& blocks, const float* most,
                                                          float* sum) {
  const hn::ScalableTag<float> d;
  HWY_ALIGN float shift[kWidth];
  for (int64_t c = 0; c < kWidth; ++c) {
    shift[c] = most[c] == kLeast ? 0.0f : most[c];
  }
  PairwiseSum total;
  for (int64_t b = 0; b < blocks.count(); ++b) {
    HWY_ALIGN float part[kWidth] = {};
    FoldRows(blocks[b], part, [&](auto a, auto x, int64_t c) HWY_ATTR {
      return hn::Add(a, ExpNegative(d, hn::Sub(x, hn::LoadU(d, shift + c))));
    });
    total.Add(part);
  }
  total.Total(sum);
}

// Keeps the best element of every column and its place. better(x, row, old, place, &value, &own):
// where element x of `row` is better than `old` at `place`; `value` and `own` then replace them.
template <class Better>
HWY_INLINE void BestOfColumns(ColumnBlocks& blocks, ColumnResults& best, const Better& better) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kStep = HWY_LANES(float);
  std::fill(best.value, best.value + kWidth, kLeast);
  std::fill(best.second, best.second + kWidth, 0.0f);
  float row = 0;
  for (int64_t b = 0; b < blocks.count(); ++b) {
    const RowBlock block = blocks[b];
    for (int64_t r = 0; r < block.rows; ++r, ++row) {
      const float* x = block.data + r * block.pitch;
      for (int64_t c = 0; c < block.width; c += kStep) {
        const auto old = hn::Load(d, best.value + c), place = hn::Load(d, best.second + c);
        auto value = hn::LoadU(d, x + c), own = hn::Set(d, row);
        const auto is_better = better(value, row, old, place, &value, &own);
        hn::Store(hn::IfThenElse(is_better, value, old), d, best.value + c);
        hn::Store(hn::IfThenElse(is_better, own, place), d, best.second + c);
      }
    }
  }
}

// The first of the largest elements; NaN counts as -inf.
HWY_NOINLINE HWY_MAYBE_UNUSED static void ArgMaxOfColumns(ColumnBlocks& blocks,
                                                          ColumnResults& best) {
  BestOfColumns(blocks, best, [](auto x, float, auto old, auto, auto*, auto*) HWY_ATTR {
    return hn::Gt(x, old);
  });
}

// The same of the axis followed by its negative: the place of x, or -1 - place of -x. Of equal
// ones, those of x come before those of -x.
HWY_NOINLINE HWY_MAYBE_UNUSED static void ArgMaxSignedOfColumns(ColumnBlocks& blocks,
                                                                ColumnResults& best) {
  BestOfColumns(blocks, best,
                [](auto x, float row, auto old, auto place, auto* value, auto* own) HWY_ATTR {
                  const hn::ScalableTag<float> d;
                  const auto zero = hn::Zero(d), size = hn::Abs(x);
                  const auto is_negative = hn::Lt(x, zero);
                  const auto comes_first = hn::AndNot(is_negative, hn::Lt(place, zero));
                  *value = size;
                  *own = hn::IfThenElse(is_negative, hn::Set(d, -1 - row), hn::Set(d, row));
                  return hn::Or(hn::Gt(size, old), hn::And(hn::Eq(size, old), comes_first));
                });
}

// value + log(second): the log sum exp of ColumnResults. Infinities and NaN are `value` itself.
HWY_NOINLINE HWY_MAYBE_UNUSED static void LogSumExpOf(const ColumnResults& parts, int64_t columns,
                                                      float* lse) {
  const wide::D d;
  const hn::Rebind<float, wide::D> half;
  for (int64_t c = 0; c < columns; c += HWY_LANES(double)) {
    const auto value = hn::PromoteTo(d, hn::LoadU(half, parts.value + c));
    const auto sum = hn::PromoteTo(d, hn::LoadU(half, parts.second + c));
    const auto is_finite = hn::Lt(hn::Abs(value), wide::Number(wide::kInf));
    const auto result = hn::IfThenElse(is_finite, hn::Add(value, wide::Log(sum)), value);
    hn::StoreU(hn::DemoteTo(half, result), half, lse + c);
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
