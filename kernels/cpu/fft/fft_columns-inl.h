// One discrete Fourier transform for each lane: kLanes columns at once, no shuffles. An element is
// kLanes real parts, then kLanes imaginary parts.
#if defined(ATTND_CPU_FFT_COLUMNS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_FFT_COLUMNS_INL_H_
#undef ATTND_CPU_FFT_COLUMNS_INL_H_
#else
#define ATTND_CPU_FFT_COLUMNS_INL_H_
#endif

#include <algorithm>
#include <utility>

#include "hwy/highway.h"
#include "kernels/core/integer.h"
#include "kernels/core/run_control.h"
#include "kernels/cpu/fft/fft_tables.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace fft {
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr int64_t kLanes = HWY_LANES(float);
constexpr int64_t kElement = 2 * kLanes;  // floats

struct C {
  V re, im;
};

HWY_INLINE C Load(const float* at) { return {hn::Load(D(), at), hn::Load(D(), at + kLanes)}; }
HWY_INLINE void Store(C x, float* at) {
  hn::Store(x.re, D(), at);
  hn::Store(x.im, D(), at + kLanes);
}
HWY_INLINE C Set(const float* pair) { return {hn::Set(D(), pair[0]), hn::Set(D(), pair[1])}; }
HWY_INLINE C Add(C a, C b) { return {hn::Add(a.re, b.re), hn::Add(a.im, b.im)}; }
HWY_INLINE C Sub(C a, C b) { return {hn::Sub(a.re, b.re), hn::Sub(a.im, b.im)}; }
HWY_INLINE C Mul(C a, C w) {
  return {hn::MulSub(a.re, w.re, hn::Mul(a.im, w.im)), hn::MulAdd(a.re, w.im, hn::Mul(a.im, w.re))};
}
// a + b w.
HWY_INLINE C MulAdd(C a, C b, C w) {
  return {hn::NegMulAdd(b.im, w.im, hn::MulAdd(b.re, w.re, a.re)),
          hn::MulAdd(b.im, w.re, hn::MulAdd(b.re, w.im, a.im))};
}
// a + s b for a real s.
HWY_INLINE C ScaleAdd(C a, C b, float s) {
  const V factor = hn::Set(D(), s);
  return {hn::MulAdd(factor, b.re, a.re), hn::MulAdd(factor, b.im, a.im)};
}
HWY_INLINE C Scale(C a, float s) {
  return {hn::Mul(a.re, hn::Set(D(), s)), hn::Mul(a.im, hn::Set(D(), s))};
}
// a - i b and a + i b.
HWY_INLINE C SubI(C a, C b) { return {hn::Add(a.re, b.im), hn::Sub(a.im, b.re)}; }
HWY_INLINE C AddI(C a, C b) { return {hn::Sub(a.re, b.im), hn::Add(a.im, b.re)}; }

// In place: x[t] = sum_u x[u] exp(-2 pi i u t / R).
template <int R>
HWY_INLINE void Butterfly(C (&x)[R]) {
  if constexpr (R == 2) {
    const C sum = Add(x[0], x[1]);
    x[1] = Sub(x[0], x[1]);
    x[0] = sum;
  } else if constexpr (R == 3) {
    const C sum = Add(x[1], x[2]);
    const C turned = Scale(Sub(x[1], x[2]), 0.866025403784438647f);  // sin(pi / 3)
    const C middle = ScaleAdd(x[0], sum, -0.5f);
    x[0] = Add(x[0], sum);
    x[1] = SubI(middle, turned);
    x[2] = AddI(middle, turned);
  } else if constexpr (R == 4) {
    const C s02 = Add(x[0], x[2]), d02 = Sub(x[0], x[2]);
    const C s13 = Add(x[1], x[3]), d13 = Sub(x[1], x[3]);
    x[0] = Add(s02, s13);
    x[1] = SubI(d02, d13);
    x[2] = Sub(s02, s13);
    x[3] = AddI(d02, d13);
  } else {
    static_assert(R == 5);
    constexpr float kC1 = 0.309016994374947424f, kC2 = -0.809016994374947424f;  // cos(2 pi j / 5)
    constexpr float kS1 = 0.951056516295153572f, kS2 = 0.587785252292473129f;   // sin
    const C s14 = Add(x[1], x[4]), d14 = Sub(x[1], x[4]);
    const C s23 = Add(x[2], x[3]), d23 = Sub(x[2], x[3]);
    const C a = ScaleAdd(ScaleAdd(x[0], s14, kC1), s23, kC2);
    const C b = ScaleAdd(ScaleAdd(x[0], s14, kC2), s23, kC1);
    const C c = ScaleAdd(Scale(d14, kS1), d23, kS2);
    const C d = ScaleAdd(Scale(d14, kS2), d23, -kS1);
    x[0] = Add(x[0], Add(s14, s23));
    x[1] = SubI(a, c);
    x[2] = SubI(b, d);
    x[3] = AddI(b, d);
    x[4] = AddI(a, c);
  }
}

template <int R>
HWY_NOINLINE void Pass(const FftLevel::Pass& pass, const float* from, float* to) {
  const int64_t parts = pass.parts, stride = pass.stride;
  for (int64_t p = 0; p < parts; ++p) {
    const float* w = pass.twiddles.data() + p * (R - 1) * 2;
    for (int64_t q = 0; q < stride; ++q) {
      C x[R];
#pragma GCC unroll 5
      for (int t = 0; t < R; ++t) x[t] = Load(from + (q + stride * (p + parts * t)) * kElement);
      Butterfly<R>(x);
      float* at = to + (q + stride * R * p) * kElement;
      Store(x[0], at);
      // At p = 0 all factors are 1.
#pragma GCC unroll 5
      for (int t = 1; t < R; ++t) {
        Store(p == 0 ? x[t] : Mul(x[t], Set(w + 2 * (t - 1))), at + stride * t * kElement);
      }
    }
  }
}

// Any radix, as the sum that defines it.
HWY_NOINLINE HWY_MAYBE_UNUSED static void SlowPass(const FftLevel::Pass& pass, const float* from,
                                                   float* to) {
  const int64_t parts = pass.parts, stride = pass.stride, radix = pass.radix;
  const float* roots = pass.twiddles.data() + parts * (radix - 1) * 2;
  for (int64_t p = 0; p < parts; ++p) {
    const float* w = pass.twiddles.data() + p * (radix - 1) * 2;
    for (int64_t q = 0; q < stride; ++q) {
      for (int64_t t = 0; t < radix; ++t) {
        C sum = Load(from + (q + stride * p) * kElement);
        int64_t turns = 0;
        for (int64_t u = 1; u < radix; ++u) {
          turns = turns + t >= radix ? turns + t - radix : turns + t;
          sum = MulAdd(sum, Load(from + (q + stride * (p + parts * u)) * kElement),
                       Set(roots + 2 * turns));
        }
        if (t > 0) sum = Mul(sum, Set(w + 2 * (t - 1)));
        Store(sum, to + (q + stride * (radix * p + t)) * kElement);
      }
    }
  }
}

// Transforms level.n elements at `x`, which is overwritten, with as many at `other`; returns the
// one of the two that holds the result.
HWY_NOINLINE HWY_MAYBE_UNUSED static float* RunLevel(const FftLevel& level, float* x,
                                                     float* other) {
  for (const FftLevel::Pass& pass : level.passes) {
    switch (pass.radix) {
      case 2:
        Pass<2>(pass, x, other);
        break;
      case 3:
        Pass<3>(pass, x, other);
        break;
      case 4:
        Pass<4>(pass, x, other);
        break;
      case 5:
        Pass<5>(pass, x, other);
        break;
      default:
        SlowPass(pass, x, other);
    }
    std::swap(x, other);
  }
  return x;
}

// Where columns come from and go to. Every element is read once before any is written.
class Columns {
 public:
  // Elements first + i step, i < count, to and from consecutive memory.
  virtual void Read(int64_t first, int64_t step, int64_t count, float* to) = 0;
  virtual void Write(int64_t first, int64_t step, int64_t count, const float* from) = 0;

 protected:
  ~Columns() = default;
};

// Elements in memory.
class Stored final : public Columns {
 public:
  explicit Stored(float* elements) : elements_(elements) {}
  void Read(int64_t first, int64_t step, int64_t count, float* to) override {
    for (int64_t i = 0; i < count; ++i) {
      Store(Load(elements_ + (first + i * step) * kElement), to + i * kElement);
    }
  }
  void Write(int64_t first, int64_t step, int64_t count, const float* from) override {
    for (int64_t i = 0; i < count; ++i) {
      Store(Load(from + i * kElement), elements_ + (first + i * step) * kElement);
    }
  }

 private:
  float* const elements_;
};

// Element j = j1 n2 + j2, k = k1 + n1 k2: transforms over j1, factors, transforms over j2
// (Gentleman and Sande 1966).
inline void RunSmooth(const FftTables& tables, Columns& columns, float* work) {
  const int64_t n1 = tables.sizes.n1, n2 = tables.sizes.n2;
  float* x = work;
  float* other = x + n1 * kElement;
  if (n2 == 1) {
    columns.Read(0, 1, n1, x);
    columns.Write(0, 1, n1, RunLevel(tables.outer, x, other));
    return;
  }
  // One element more a row: a power of two would fall on few cache sets.
  float* rows = other + n1 * kElement;
  const int64_t pitch = (n2 + 1) * kElement;
  for (int64_t j2 = 0; j2 < n2; ++j2) {
    if (CheckPoint()) return;
    columns.Read(j2, n2, n1, x);
    const float* done = RunLevel(tables.outer, x, other);
    const float* w = tables.twiddles.data() + j2 * n1 * 2;
    for (int64_t k1 = 0; k1 < n1; ++k1) {
      Store(Mul(Load(done + k1 * kElement), Set(w + 2 * k1)), rows + k1 * pitch + j2 * kElement);
    }
  }
  // x and `other` are next to each other and together never smaller than a row.
  for (int64_t k1 = 0; k1 < n1; ++k1) {
    if (CheckPoint()) return;
    columns.Write(k1, n1, n2, RunLevel(tables.inner, rows + k1 * pitch, x));
  }
}

// The two transforms of a convolution. The inverse one is that of exchanged real and imaginary
// parts.
class ChirpIn final : public Columns {
 public:
  ChirpIn(const FftTables& tables, Columns& columns, float* spectrum)
      : tables_(tables), columns_(columns), spectrum_(spectrum) {}
  void Read(int64_t first, int64_t step, int64_t count, float* to) override {
    const int64_t n = tables_.sizes.n;
    const int64_t given = first >= n ? 0 : std::min(count, CeilDiv(n - first, step));
    if (given > 0) columns_.Read(first, step, given, to);
    for (int64_t i = 0; i < given; ++i) {
      float* at = to + i * kElement;
      Store(Mul(Load(at), Set(tables_.chirp.data() + 2 * (first + i * step))), at);
    }
    std::fill(to + given * kElement, to + count * kElement, 0.0f);
  }
  void Write(int64_t first, int64_t step, int64_t count, const float* from) override {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t k = first + i * step;
      const C x = Mul(Load(from + i * kElement), Set(tables_.spectrum.data() + 2 * k));
      Store({x.im, x.re}, spectrum_ + k * kElement);
    }
  }

 private:
  const FftTables& tables_;
  Columns& columns_;
  float* const spectrum_;
};

class ChirpOut final : public Columns {
 public:
  ChirpOut(const FftTables& tables, Columns& columns, float* spectrum)
      : tables_(tables), columns_(columns), spectrum_(spectrum) {}
  void Read(int64_t first, int64_t step, int64_t count, float* to) override {
    spectrum_.Read(first, step, count, to);
  }
  void Write(int64_t first, int64_t step, int64_t count, const float* from) override {
    for (int64_t i = 0; i < count && first + i * step < tables_.sizes.n; ++i) {
      const int64_t k = first + i * step;
      const C x = Load(from + i * kElement);
      HWY_ALIGN float element[kElement];
      Store(Mul({x.im, x.re}, Set(tables_.chirp.data() + 2 * k)), element);
      columns_.Write(k, 1, 1, element);
    }
  }

 private:
  const FftTables& tables_;
  Columns& columns_;
  Stored spectrum_;
};

// work: WorkOf(tables.sizes) elements.
HWY_NOINLINE HWY_MAYBE_UNUSED static void Run(const FftTables& tables, Columns& columns,
                                              float* work) {
  if (!tables.sizes.is_convolution()) return RunSmooth(tables, columns, work);
  float* spectrum = work;
  float* rest = spectrum + tables.sizes.smooth * kElement;
  ChirpIn in(tables, columns, spectrum);
  RunSmooth(tables, in, rest);
  ChirpOut out(tables, columns, spectrum);
  RunSmooth(tables, out, rest);
}

}  // namespace fft
}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
