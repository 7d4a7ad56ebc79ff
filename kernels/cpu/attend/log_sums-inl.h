// The log-sum-exp of the rows of a tile.
#if defined(ATTND_CPU_LOG_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_LOG_SUMS_INL_H_
#undef ATTND_CPU_LOG_SUMS_INL_H_
#else
#define ATTND_CPU_LOG_SUMS_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/attend/attend_tile.h"
#include "kernels/cpu/simd/wide_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Of the rows of a tile: log(e^max sum) as the sum of two floats, see AttendProblem::lse_low.
struct LogSums {
  float lse[kTile], low[kTile];

  // lse = -inf where a sum is 0. In float64: the error of a float32 logarithm multiplies all
  // weights of a row.
  LogSums(const float* max, const float* sums) {
    const wide::D d;
    const hn::Rebind<float, wide::D> half;
    for (int64_t i = 0; i < kTile; i += HWY_LANES(double)) {
      const wide::V log_sum = wide::Log(hn::PromoteTo(d, hn::LoadU(half, sums + i)));
      const wide::V base = hn::PromoteTo(d, hn::LoadU(half, max + i));
      const auto rounded = hn::DemoteTo(half, hn::Add(base, log_sum));
      // The difference first: it is exact, while base + log_sum may round.
      const wide::V rest = hn::Add(hn::Sub(base, hn::PromoteTo(d, rounded)), log_sum);
      hn::StoreU(rounded, half, lse + i);
      hn::StoreU(hn::IfThenElseZero(hn::IsFinite(rounded), hn::DemoteTo(half, rest)), half,
                 low + i);
    }
  }
  void Store(int64_t i, const HeadRows& to_lse, const HeadRows& to_low, int64_t row) const {
    to_lse.Scalar(row) = lse[i];
    if (to_low.data != nullptr) to_low.Scalar(row) = low[i];
  }
};

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
