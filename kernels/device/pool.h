// pool: reduces ranges of rows.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/core/view.h"

namespace attnd {

enum class PoolOp : uint8_t {
  kSum,
  kMean,
  kMax,       // NaN if there is one
  kSumWhere,  // the sum over those n with arg[.., n, d] = m: the gradient of kMax
};

// Half-open.
struct RowRange {
  int64_t begin = 0, end = 0;
  bool operator==(const RowRange&) const = default;
};

// out[.., m, d] = op of x[.., n, d] over n in ranges[m]; 0 for an empty range. `begin` and `end`
// never decrease from range to range; ranges may overlap and leave gaps, so strided windows and
// segments are both one list. x a float dtype, any strides; out float32. kMax: `arg` [.., M, D]
// int32, if given, gets the row of the first maximum (NaN counts as -inf; -1: empty range).
// kSumWhere reads `arg` [.., N, D] int32. Sums as in reduce.h.
struct PoolProblem {
  View x, out, arg;
  std::vector<RowRange> ranges;
};

struct PoolArgs {
  PoolOp op = PoolOp::kSum;
  std::vector<PoolProblem> problems;
};

// For ForEachView of launch.h.
template <class F>
void ForEachView(const PoolProblem& p, const F& f) {
  f(p.x), f(p.out), f(p.arg);
}

}  // namespace attnd
