// gather, scatter, sort: rows by index.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/core/view.h"

namespace attnd {

// out[.., m, :] = x[.., index[.., m], :]; index -1: zeros. x [.., N, D] a float dtype or int32, out
// [.., M, D] of a float dtype (int32 for int32); index [.., M] int32 in [-1, N). Leading dimensions
// of x and index broadcast to those of out. Any strides.
struct GatherRowsProblem {
  View x, index, out;
};

struct GatherRowsArgs {
  std::vector<GatherRowsProblem> problems;
};

// out[.., n, :] = sum of x[.., m, :] over index[.., m] = n, in ascending m, in float32:
// deterministic. Rows without an index are 0; rows of index -1 are left out. Where `out` has 1 in a
// leading dimension and x or index has more, the sum runs over that dimension too, in ascending
// order. x and out of a float dtype, any strides.
struct ScatterRowsProblem {
  View x, index, out;
};

struct ScatterRowsArgs {
  std::vector<ScatterRowsProblem> problems;
};

// order[.., m], m < M: the index of the m-th smallest (descending: largest) key along the last axis
// of x [.., N], M <= N. Stable: equal keys keep their order; -0 equals 0; NaN comes last in both
// directions. x float32 or int32, any strides; order int32, dense.
struct SortProblem {
  View x, order;
};

struct SortArgs {
  bool descending = false;
  std::vector<SortProblem> problems;
};

// For ForEachView of launch.h.
template <class F>
void ForEachView(const GatherRowsProblem& p, const F& f) {
  f(p.x), f(p.index), f(p.out);
}
template <class F>
void ForEachView(const ScatterRowsProblem& p, const F& f) {
  f(p.x), f(p.index), f(p.out);
}
template <class F>
void ForEachView(const SortProblem& p, const F& f) {
  f(p.x), f(p.order);
}

}  // namespace attnd
