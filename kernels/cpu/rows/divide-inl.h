// Rows that are divided by a number of their own.
#if defined(ATTND_CPU_ROWS_DIVIDE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_ROWS_DIVIDE_INL_H_
#undef ATTND_CPU_ROWS_DIVIDE_INL_H_
#else
#define ATTND_CPU_ROWS_DIVIDE_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "hwy/highway.h"
#include "kernels/core/view.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Row n of a list of divisors, 1 without one.
HWY_MAYBE_UNUSED static float DivisorOf(const View& divisor, const float* list, int64_t n) {
  return list == nullptr ? 1.0f : list[n * divisor.stride[divisor.shape.rank - 1]];
}

// to[0, n) = from / divisor, 0 where that is 0. The unit of divisions takes ten times as long as
// that of products, which does where the inverse is a normal number.
HWY_MAYBE_UNUSED static void DivideRow(const float* from, int64_t n, float divisor, float* to) {
  if (divisor == 0) return std::fill(to, to + n, 0.0f);
  constexpr float kMost = 0x1p125f;
  const hn::ScalableTag<float> d;
  constexpr int64_t kLanes = HWY_LANES(float);
  int64_t i = 0;
  if (std::fabs(divisor) <= kMost) {
    const float inverse = 1 / divisor;
    const auto by = hn::Set(d, inverse);
    for (; i + kLanes <= n; i += kLanes) {
      hn::StoreU(hn::Mul(hn::LoadU(d, from + i), by), d, to + i);
    }
    for (; i < n; ++i) to[i] = from[i] * inverse;
    return;
  }
  const auto by = hn::Set(d, divisor);
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(hn::Div(hn::LoadU(d, from + i), by), d, to + i);
  }
  for (; i < n; ++i) to[i] = from[i] / divisor;
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
