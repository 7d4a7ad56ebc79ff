// gather, scatter, sort: rows by index.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/core/view.h"

namespace attnd {

// out[.., m, :] = x[.., index[.., m], :]; index -1: zeros. x [.., N, D] a float dtype or int32, out
// [.., M, D] of a float dtype (int32 for int32); index [.., M] int32 in [-1, N). Leading dimensions
// of x and index broadcast to those of out. Any strides.
// columns [.., W] int32 in [-1, D): out [.., M, W] holds x[.., index[.., m], columns[.., w]] of a
// float x; -1: zero. Its leading dimensions broadcast like those of index.
// divisor [.., N] float32: row n of x counts as x / divisor[.., n], and 0 where that is 0. Its
// leading dimensions broadcast, too; not beside columns.
struct GatherRowsProblem {
  View x, index, out;
  View columns;  // not given(): all, in order
  View divisor;  // not given(): 1
};

struct GatherRowsArgs {
  std::vector<GatherRowsProblem> problems;
};

// out[.., n, :] = sum of x[.., m, :] over index[.., m] = n, in ascending m, in float32:
// deterministic. Rows without an index are 0; rows of index -1 are left out. Where `out` has 1 in a
// leading dimension and x or index has more, the sum runs over that dimension too, in ascending
// order. x and out of a float dtype, any strides.
// columns [.., W], as in gather: x[.., m, w] is added to out[.., index[.., m], columns[.., w]], for
// each m in ascending w; out is then float32, dense along its rows. Lists that name a row or a
// column twice give the right sums, but a device may take long for them, and not end before it is
// done.
// divisor [.., N], as in gather: row n of out is the sum / divisor[.., n].
struct ScatterRowsProblem {
  View x, index, out;
  View columns;  // not given(): all, in order
  View divisor;  // not given(): 1
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
  bool by_index = false;  // the same M indices, but in ascending order of the indices
  std::vector<SortProblem> problems;
};

// For ForEachView of launch.h.
template <class F>
void ForEachView(const GatherRowsProblem& p, const F& f) {
  f(p.x), f(p.index), f(p.out), f(p.columns), f(p.divisor);
}
template <class F>
void ForEachView(const ScatterRowsProblem& p, const F& f) {
  f(p.x), f(p.index), f(p.out), f(p.columns), f(p.divisor);
}
template <class F>
void ForEachView(const SortProblem& p, const F& f) {
  f(p.x), f(p.order);
}

}  // namespace attnd
