// Maxima and sums of exponentials of chunks, put together.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace attnd {

// NaN if there is one, -inf of nothing.
inline float MaxOf(const float* x, int64_t stride, int64_t n) {
  float most = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < n; ++i) {
    if (x[i * stride] > most || std::isnan(x[i * stride])) most = x[i * stride];
  }
  return most;
}

// sum = sum of e^(x - most).
struct MaxAndSum {
  float most;
  double sum;
};

// parts: [chunks][2], a chunk's maximum and sum. Added in order.
inline MaxAndSum CombineLogSumExp(const float* parts, int64_t chunks) {
  MaxAndSum all = {MaxOf(parts, 2, chunks), 0};
  for (int64_t i = 0; i < chunks; ++i) {
    // A chunk of -inf only adds nothing, even where all are such.
    if (std::isinf(parts[2 * i]) && parts[2 * i] < 0) continue;
    all.sum += parts[2 * i + 1] * std::exp(static_cast<double>(parts[2 * i]) - all.most);
  }
  return all;
}

}  // namespace attnd
