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

// lse[i] = log(2^max[i] sums[i]) for i < kTile, -inf where a sum is 0. In float64: a float32
// logarithm would add its error to the rounding of lse, which multiplies all weights of a row.
inline void LogSums(const float* max, const float* sums, float* lse) {
  const wide::D d;
  const hn::Rebind<float, wide::D> half;
  const wide::V ln2 = wide::Number(0.69314718055994530942);
  for (int64_t i = 0; i < kTile; i += HWY_LANES(double)) {
    const wide::V log_sum = wide::Log(hn::PromoteTo(d, hn::LoadU(half, sums + i)));
    const wide::V base = hn::PromoteTo(d, hn::LoadU(half, max + i));
    hn::StoreU(hn::DemoteTo(half, hn::MulAdd(base, ln2, log_sum)), half, lse + i);
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
