// What random_features does to a row of products u: its shift, its features, their gradient.
#if defined(ATTND_CPU_RANDOM_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_RANDOM_ROWS_INL_H_
#undef ATTND_CPU_RANDOM_ROWS_INL_H_
#else
#define ATTND_CPU_RANDOM_ROWS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <limits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd/gemm-inl.h"
#include "kernels/cpu/simd/math-inl.h"
#include "kernels/cpu/simd/waves-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Rows of u are whole vectors: behind its m numbers the first is repeated, which is no new maximum.
HWY_INLINE void FillRow(int64_t m, float* u) { std::fill(u + m, u + RoundUp(m, kLanes), u[0]); }

// The largest u, or |u|; NaN if there is one.
HWY_INLINE float LargestOf(const float* u, int64_t m, bool is_absolute) {
  const DF d;
  // Two of each: a maximum waits for the one before.
  const VF least = hn::Set(d, -std::numeric_limits<float>::infinity());
  VF largest[2] = {least, least};
  auto has_nan = hn::IsNaN(least), more_nan = has_nan;
  const auto at = [&](int64_t c) HWY_ATTR {
    const VF x = hn::LoadU(d, u + c);
    return is_absolute ? hn::Abs(x) : x;
  };
  int64_t c = 0;
  for (; c + kLanes < m; c += 2 * kLanes) {
    const VF x = at(c), y = at(c + kLanes);
    has_nan = hn::Or(has_nan, hn::IsNaN(x));
    more_nan = hn::Or(more_nan, hn::IsNaN(y));
    largest[0] = hn::Max(largest[0], x);
    largest[1] = hn::Max(largest[1], y);
  }
  if (c < m) {
    const VF x = at(c);
    has_nan = hn::Or(has_nan, hn::IsNaN(x));
    largest[0] = hn::Max(largest[0], x);
  }
  if (!hn::AllFalse(d, hn::Or(has_nan, more_nan))) return std::numeric_limits<float>::quiet_NaN();
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(largest[0], largest[1])));
}

HWY_INLINE float HalfSquare(const float* x, int64_t width) {
  const DF d;
  VF sum = hn::Zero(d);
  for (int64_t c = 0; c < width; c += kLanes) {
    const VF v = hn::LoadU(d, x + c);
    sum = hn::MulAdd(v, v, sum);
  }
  return 0.5f * hn::GetLane(hn::SumOfLanes(d, sum));
}

// A row of features, m floats. streams: past the caches, which then takes whole lines.
struct FeatureOut {
  float* to;
  bool streams;

  FeatureOut From(int64_t at) const { return {to + at, streams}; }
  // Stores what lies below m.
  HWY_INLINE void Store(VF x, int64_t c, int64_t m) const {
    const DF d;
    if (streams) return hn::Stream(x, d, to + c);
    if (c + kLanes <= m) return hn::StoreU(x, d, to + c);
    float rest[kLanes];
    hn::StoreU(x, d, rest);
    std::copy_n(rest, m - c, to + c);
  }
};

// u - s - h, whose difference of the two large terms comes first.
struct Exponent {
  VF s, h;

  HWY_INLINE VF operator()(VF u) const { return ExpSmall(DF(), hn::Sub(hn::Sub(u, s), h)); }
};

// phi = factor (e^(u - s - h) + eps), or of -u.
HWY_INLINE void Exponentials(const float* u, int64_t m, bool is_negative, float s, float h,
                             float factor, float eps, FeatureOut phi) {
  const DF d;
  const Exponent e{hn::Set(d, s), hn::Set(d, h)};
  const VF size = hn::Set(d, factor), term = hn::Set(d, factor * eps);
  for (int64_t c = 0; c < m; c += kLanes) {
    VF x = hn::LoadU(d, u + c);
    if (is_negative) x = hn::Neg(x);
    phi.Store(hn::MulAdd(e(x), size, term), c, m);
  }
}

// phi = factor (max(u, 0) + eps); NaN stays NaN.
HWY_INLINE void Relus(const float* u, int64_t m, float factor, float eps, FeatureOut phi) {
  const DF d;
  const VF size = hn::Set(d, factor), term = hn::Set(d, factor * eps);
  for (int64_t c = 0; c < m; c += kLanes) {
    const VF x = hn::LoadU(d, u + c);
    const VF positive = hn::IfThenZeroElse(hn::Lt(x, hn::Zero(d)), x);
    phi.Store(hn::MulAdd(positive, size, term), c, m);
  }
}

// phi = factor (map + eps) of mapped numbers.
HWY_INLINE void Mapped(const float* mapped, int64_t m, float factor, float eps, FeatureOut phi) {
  const DF d;
  const VF size = hn::Set(d, factor), term = hn::Set(d, factor * eps);
  for (int64_t c = 0; c < m; c += kLanes) {
    phi.Store(hn::MulAdd(hn::LoadU(d, mapped + c), size, term), c, m);
  }
}

// factor times the waves of u.
HWY_INLINE void Waves(const float* u, int64_t m, float factor, FeatureOut sines,
                      FeatureOut cosines) {
  const DF d;
  const VF size = hn::Set(d, factor);
  for (int64_t c = 0; c < m; c += kLanes) {
    const auto waves = SinCos(d, hn::LoadU(d, u + c));
    sines.Store(hn::Mul(size, waves.sin), c, m);
    cosines.Store(hn::Mul(size, waves.cos), c, m);
  }
}

// x = x factor + term, n floats.
HWY_INLINE void ScaleRow(float factor, float term, int64_t n, float* x) {
  const DF d;
  const VF size = hn::Set(d, factor), more = hn::Set(d, term);
  int64_t c = 0;
  for (; c + kLanes <= n; c += kLanes) {
    hn::StoreU(hn::MulAdd(hn::LoadU(d, x + c), size, more), d, x + c);
  }
  for (; c < n; ++c) x[c] = x[c] * factor + term;
}

// Gradients of a row: u becomes that of u; the result is sum dphi phi without eps. Rows of dphi and
// phi are whole vectors, dphi 0 behind m. `down`: dphi of the features of -u, null: there are none.
HWY_INLINE float ExponentialsGrad(const float* dphi, const float* down, int64_t m, float s, float h,
                                  float factor, float* u) {
  const DF d;
  const Exponent e{hn::Set(d, s), hn::Set(d, h)};
  const VF size = hn::Set(d, factor);
  VF sum = hn::Zero(d);
  for (int64_t c = 0; c < m; c += kLanes) {
    const VF x = hn::LoadU(d, u + c);
    VF flow = hn::Mul(hn::LoadU(d, dphi + c), hn::Mul(size, e(x)));
    sum = hn::Add(sum, flow);
    if (down != nullptr) {
      const VF back = hn::Mul(hn::LoadU(d, down + c), hn::Mul(size, e(hn::Neg(x))));
      sum = hn::Add(sum, back);
      flow = hn::Sub(flow, back);
    }
    hn::StoreU(flow, d, u + c);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// The same from phi, of eps 0, in place of u: phi, and `below` of -u.
HWY_INLINE float PowersGrad(const float* dphi, const float* down, const float* phi,
                            const float* below, int64_t m, float* u) {
  const DF d;
  VF sum = hn::Zero(d);
  for (int64_t c = 0; c < m; c += kLanes) {
    VF flow = hn::Mul(hn::LoadU(d, dphi + c), hn::LoadU(d, phi + c));
    sum = hn::Add(sum, flow);
    if (down != nullptr) {
      const VF back = hn::Mul(hn::LoadU(d, down + c), hn::LoadU(d, below + c));
      sum = hn::Add(sum, back);
      flow = hn::Sub(flow, back);
    }
    hn::StoreU(flow, d, u + c);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// Of Relus without eps.
HWY_INLINE void RelusGrad(const float* dphi, const float* phi, int64_t m, float factor, float* u) {
  const DF d;
  const VF size = hn::Set(d, factor);
  for (int64_t c = 0; c < m; c += kLanes) {
    const auto is_positive = hn::Gt(hn::LoadU(d, phi + c), hn::Zero(d));
    const VF flow = hn::Mul(size, hn::LoadU(d, dphi + c));
    hn::StoreU(hn::IfThenElseZero(is_positive, flow), d, u + c);
  }
}

HWY_INLINE float WavesGrad(const float* dsines, const float* dcosines, const float* sines,
                           const float* cosines, int64_t m, float* u) {
  const DF d;
  VF sum = hn::Zero(d);
  for (int64_t c = 0; c < m; c += kLanes) {
    const VF ds = hn::LoadU(d, dsines + c), dc = hn::LoadU(d, dcosines + c);
    const VF s = hn::LoadU(d, sines + c), k = hn::LoadU(d, cosines + c);
    hn::StoreU(hn::Sub(hn::Mul(ds, k), hn::Mul(dc, s)), d, u + c);
    sum = hn::Add(sum, hn::MulAdd(ds, s, hn::Mul(dc, k)));
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// y += factor x.
HWY_INLINE void AddRow(float factor, const float* x, int64_t width, float* y) {
  const DF d;
  for (int64_t c = 0; c < width; c += kLanes) {
    hn::StoreU(hn::MulAdd(hn::Set(d, factor), hn::LoadU(d, x + c), hn::LoadU(d, y + c)), d, y + c);
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
