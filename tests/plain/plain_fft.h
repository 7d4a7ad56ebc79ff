// The contract's double sum, first over rows, then over columns, in any precision.
#pragma once

#include <cmath>
#include <vector>

#include "tests/plain/plain.h"

namespace attnd::testing {

template <class Real>
PlainArray PlainFft(const PlainArray& x) {
  const int64_t N = x.shape[x.shape.rank - 2], M = x.shape[x.shape.rank - 1];
  PlainArray out(x.shape);
  const auto roots = [](int64_t n, auto function) {
    std::vector<Real> values;
    for (int64_t i = 0; i < n; ++i) {
      values.push_back(static_cast<Real>(function(-2 * M_PI * static_cast<double>(i) / n)));
    }
    return values;
  };
  const auto cosine = [](double a) { return std::cos(a); };
  const auto sine = [](double a) { return std::sin(a); };
  const auto cos_n = roots(N, cosine), sin_n = roots(N, sine);
  const auto cos_m = roots(M, cosine), sin_m = roots(M, sine);
  const int64_t size = N * M;
  for (int64_t first = 0; first < x.shape.size(); first += size) {
    const double* from = x.values.data() + first;
    std::vector<Real> re(static_cast<size_t>(size)), im(re.size());
    for (int64_t a = 0; a < N; ++a) {
      for (int64_t m = 0; m < M; ++m) {
        for (int64_t b = 0; b < M; ++b) {
          const auto value = static_cast<Real>(from[a * M + b]);
          re[a * M + m] += value * cos_m[m * b % M];
          im[a * M + m] += value * sin_m[m * b % M];
        }
      }
    }
    for (int64_t n = 0; n < N; ++n) {
      for (int64_t m = 0; m < M; ++m) {
        Real sum = 0;
        for (int64_t a = 0; a < N; ++a) {
          sum += re[a * M + m] * cos_n[n * a % N] - im[a * M + m] * sin_n[n * a % N];
        }
        out.values[static_cast<size_t>(first + n * M + m)] = static_cast<double>(sum);
      }
    }
  }
  return out;
}

}  // namespace attnd::testing
