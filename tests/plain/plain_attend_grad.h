// Attention with every term and its gradients as nested loops over pairs, written from
// kernels/device/attend.h.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops/attend.h"
#include "tests/plain/plain.h"

namespace attnd::testing {

// For every gradient, the largest sum of magnitudes behind one of its elements.
struct PlainGradient {
  PlainArray values;
  double size = 0;
};
struct PlainAttendGradients {
  PlainGradient dq, dk, dv, dk2, dv2, dbias, dslopes, dsinks, dtable, dq_rel, dr;
};

// A pair that a query row sees: the row of k, from Nk on of k2; constants of the pattern.
struct SeenKey {
  int64_t key = 0;
  double bias = 0;
  int64_t label = -1;
};
// The keys of each query row.
std::vector<std::vector<SeenKey>> SeenKeys(const AttendProblem& problem, int64_t b, int64_t h);

// Writes out and lse (where given) of a problem, computed in double.
void PlainAttendForward(const AttendParams& params, const AttendProblem& problem);

// Gradients from the stored out and lse, in the shapes of the problem's gradient views, computed
// with numbers of type T (float or double).
template <class T>
PlainAttendGradients PlainAttendGrad(const AttendParams& params, const AttendGradProblem& problem);

}  // namespace attnd::testing
