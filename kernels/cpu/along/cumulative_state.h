// The state of cumulative after the chunks before a given one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/device/device.h"

namespace attnd {

// A sum: total, and 1 if it began anew on the way. A maximum: itself. Log sum exp: the maximum and
// the sum of e^(x - maximum).
struct CumulativeState {
  double a, b;
};

inline CumulativeState NothingSeen(CumulativeOp op) {
  return {op == CumulativeOp::kSum ? 0 : -std::numeric_limits<double>::infinity(), 0};
}

inline CumulativeState Combine(CumulativeOp op, CumulativeState x, CumulativeState y) {
  if (op == CumulativeOp::kSum) {
    return {y.b != 0 ? y.a : x.a + y.a, std::max(x.b, y.b)};
  }
  const double most = std::isnan(x.a) || x.a > y.a ? x.a : y.a;
  if (op == CumulativeOp::kMax || !std::isfinite(most)) return {most, 0};
  return {most, x.b * std::exp(x.a - most) + y.b * std::exp(y.a - most)};
}

// The state with which chunk `chunk` starts; totals: [chunks][2].
inline CumulativeState StartOf(const CumulativeArgs& args, const double* totals, int64_t chunks,
                               int64_t chunk) {
  CumulativeState state = NothingSeen(args.op);
  const int64_t before = args.reverse ? chunks - 1 - chunk : chunk;
  for (int64_t i = 0; i < before; ++i) {
    const double* part = totals + 2 * (args.reverse ? chunks - 1 - i : i);
    state = Combine(args.op, state, {part[0], part[1]});
  }
  return state;
}

}  // namespace attnd
