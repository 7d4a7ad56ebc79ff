// Transforms in shared memory: Stockham's passes, decimation in frequency, over lines that lie side
// by side.
#pragma once

#include "kernels/cuda/fft/fft_pass.h"
#include "kernels/cuda/simt.h"

namespace attnd::cuda {

SIMT_FN FftComplex Add(FftComplex a, FftComplex b) { return {a.re + b.re, a.im + b.im}; }
SIMT_FN FftComplex Sub(FftComplex a, FftComplex b) { return {a.re - b.re, a.im - b.im}; }
SIMT_FN FftComplex Mul(FftComplex a, FftComplex w) {
  return {fmaf(a.re, w.re, -(a.im * w.im)), fmaf(a.re, w.im, a.im * w.re)};
}
SIMT_FN FftComplex Scale(FftComplex a, float s) { return {a.re * s, a.im * s}; }
// a + b s for a real s.
SIMT_FN FftComplex ScaleAdd(FftComplex a, FftComplex b, float s) {
  return {fmaf(b.re, s, a.re), fmaf(b.im, s, a.im)};
}
SIMT_FN FftComplex Exchanged(FftComplex a) { return {a.im, a.re}; }
// a - i b and a + i b.
SIMT_FN FftComplex SubI(FftComplex a, FftComplex b) { return {a.re + b.im, a.im - b.re}; }
SIMT_FN FftComplex AddI(FftComplex a, FftComplex b) { return {a.re - b.im, a.im + b.re}; }

// In place: x[t] = sum_u x[u] exp(-2 pi i u t / R).
template <int R>
SIMT_FN void Butterfly(FftComplex (&x)[R]) {
  if constexpr (R == 2) {
    const FftComplex sum = Add(x[0], x[1]);
    x[1] = Sub(x[0], x[1]);
    x[0] = sum;
  } else if constexpr (R == 3) {
    const FftComplex sum = Add(x[1], x[2]);
    const FftComplex turned = Scale(Sub(x[1], x[2]), 0.866025403784438647f);  // sin(pi / 3)
    const FftComplex middle = ScaleAdd(x[0], sum, -0.5f);
    x[0] = Add(x[0], sum);
    x[1] = SubI(middle, turned);
    x[2] = AddI(middle, turned);
  } else if constexpr (R == 4) {
    const FftComplex s02 = Add(x[0], x[2]), d02 = Sub(x[0], x[2]);
    const FftComplex s13 = Add(x[1], x[3]), d13 = Sub(x[1], x[3]);
    x[0] = Add(s02, s13);
    x[1] = SubI(d02, d13);
    x[2] = Sub(s02, s13);
    x[3] = AddI(d02, d13);
  } else {
    static_assert(R == 5);
    constexpr float kC1 = 0.309016994374947424f, kC2 = -0.809016994374947424f;  // cos(2 pi j / 5)
    constexpr float kS1 = 0.951056516295153572f, kS2 = 0.587785252292473129f;   // sin
    const FftComplex s14 = Add(x[1], x[4]), d14 = Sub(x[1], x[4]);
    const FftComplex s23 = Add(x[2], x[3]), d23 = Sub(x[2], x[3]);
    const FftComplex a = ScaleAdd(ScaleAdd(x[0], s14, kC1), s23, kC2);
    const FftComplex b = ScaleAdd(ScaleAdd(x[0], s14, kC2), s23, kC1);
    const FftComplex c = ScaleAdd(Scale(d14, kS1), d23, kS2);
    const FftComplex d = ScaleAdd(Scale(d14, kS2), d23, -kS1);
    x[0] = Add(x[0], Add(s14, s23));
    x[1] = SubI(a, c);
    x[2] = SubI(b, d);
    x[3] = AddI(b, d);
    x[4] = AddI(a, c);
  }
}

// One radix of `elements` elements: element q + stride (p + parts u), 0 <= q < stride, becomes
// q + stride (R p + t), times the root of t p of the rest of the length, `root` roots apart.
template <int R>
SIMT_FN void RunRadix(const FftComplex* from, FftComplex* to, int elements, int stride, int parts,
                      const FftComplex* roots, int64_t root) {
  const int butterflies = elements / R;
  for (int i = static_cast<int>(threadIdx.x); i < butterflies; i += static_cast<int>(blockDim.x)) {
    FftComplex x[R];
#pragma unroll
    for (int u = 0; u < R; ++u) x[u] = from[i + u * butterflies];
    Butterfly<R>(x);
    const int p = i / stride;
    FftComplex* const at = to + i + (R - 1) * stride * p;
    at[0] = x[0];
#pragma unroll
    for (int t = 1; t < R; ++t) {
      at[t * stride] = parts == 1 ? x[t] : Mul(x[t], roots[p * t * root]);
    }
  }
}

// Any radix, as the sum that defines it.
SIMT_FN void RunAnyRadix(int radix, const FftComplex* from, FftComplex* to, int elements,
                         int stride, int parts, const FftComplex* roots, int64_t root, int64_t n) {
  const int butterflies = elements / radix;
  const int64_t of_radix = n / radix;
  for (int e = static_cast<int>(threadIdx.x); e < elements; e += static_cast<int>(blockDim.x)) {
    const int t = e / butterflies, i = e - t * butterflies, p = i / stride;
    FftComplex sum = from[i];
    int turns = 0;
    for (int u = 1; u < radix; ++u) {
      turns = turns + t >= radix ? turns + t - radix : turns + t;
      const FftComplex x = from[i + u * butterflies], w = roots[turns * of_radix];
      sum = {fmaf(x.re, w.re, fmaf(-x.im, w.im, sum.re)),
             fmaf(x.re, w.im, fmaf(x.im, w.re, sum.im))};
    }
    if (parts > 1 && t > 0) sum = Mul(sum, roots[p * t * root]);
    to[i + (radix - 1) * stride * p + t * stride] = sum;
  }
}

// Transforms `width` lines of a level, element j of line l at x[j width + l], with as much memory
// at `other`; returns the one of the two that holds the result. All threads see x before, and the
// result after.
SIMT_FN FftComplex* RunLevel(const FftLevel& level, int width, const FftComplex* roots, int64_t n,
                             FftComplex* x, FftComplex* other) {
  const int elements = level.length * width;
  int stride = width, rest = level.length;
  for (int i = 0; i < level.count; ++i) {
    const int radix = level.radices[i], parts = rest / radix;
    const int64_t root = n / rest;
    switch (radix) {
      case 2:
        RunRadix<2>(x, other, elements, stride, parts, roots, root);
        break;
      case 3:
        RunRadix<3>(x, other, elements, stride, parts, roots, root);
        break;
      case 4:
        RunRadix<4>(x, other, elements, stride, parts, roots, root);
        break;
      case 5:
        RunRadix<5>(x, other, elements, stride, parts, roots, root);
        break;
      default:
        RunAnyRadix(radix, x, other, elements, stride, parts, roots, root, n);
    }
    __syncthreads();
    FftComplex* const done = other;
    other = x;
    x = done;
    stride *= radix;
    rest = parts;
  }
  return x;
}

}  // namespace attnd::cuda
