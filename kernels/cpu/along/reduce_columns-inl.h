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

// The first of the largest elements; NaN counts as -inf.
HWY_NOINLINE HWY_MAYBE_UNUSED static void ArgMaxOfColumns(ColumnBlocks& blocks,
                                                          ColumnResults& best) {
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
        const auto value = hn::LoadU(d, x + c), old = hn::Load(d, best.value + c);
        const auto larger = hn::Gt(value, old);
        hn::Store(hn::IfThenElse(larger, value, old), d, best.value + c);
        const auto place = hn::Load(d, best.second + c);
        hn::Store(hn::IfThenElse(larger, hn::Set(d, row), place), d, best.second + c);
      }
    }
  }
}

// The same of the axis followed by its negative: the place of x, or -1 - place of -x.
HWY_NOINLINE HWY_MAYBE_UNUSED static void ArgMaxSignedOfColumns(ColumnBlocks& blocks,
                                                                ColumnResults& best) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kStep = HWY_LANES(float);
  const auto zero = hn::Zero(d);
  std::fill(best.value, best.value + kWidth, kLeast);
  std::fill(best.second, best.second + kWidth, 0.0f);
  float row = 0;
  for (int64_t b = 0; b < blocks.count(); ++b) {
    const RowBlock block = blocks[b];
    for (int64_t r = 0; r < block.rows; ++r, ++row) {
      const float* x = block.data + r * block.pitch;
      for (int64_t c = 0; c < block.width; c += kStep) {
        const auto signed_x = hn::LoadU(d, x + c), value = hn::Abs(signed_x);
        const auto old = hn::Load(d, best.value + c), place = hn::Load(d, best.second + c);
        const auto is_negative = hn::Lt(signed_x, zero);
        // Of equal ones, those of x come before those of -x.
        const auto comes_first = hn::AndNot(is_negative, hn::Lt(place, zero));
        const auto larger = hn::Or(hn::Gt(value, old), hn::And(hn::Eq(value, old), comes_first));
        const auto own = hn::IfThenElse(is_negative, hn::Set(d, -1 - row), hn::Set(d, row));
        hn::Store(hn::IfThenElse(larger, value, old), d, best.value + c);
        hn::Store(hn::IfThenElse(larger, own, place), d, best.second + c);
      }
    }
  }
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
