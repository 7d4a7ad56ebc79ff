// merge: joins attention results over disjoint sets of keys.
//
//   lse_i = log sum_p exp(lse_p,i),  out_i = sum_p exp(lse_p,i - lse_i) out_p,i   (Dao et al. 2022)
//
// lse_p,i = -inf means "no key seen": weight 0, whatever out_p,i holds; all -inf: out 0, lse -inf.
// A row with one lse of +inf has lse +inf and out NaN.
#pragma once

#include <vector>

#include "kernels/core/view.h"

namespace attnd {

constexpr size_t kMaxMergeParts = 64;

// [.., N, Dv] of any float dtype, last stride 1, and [.., N] float32, natural log. lse_low as in
// attend.h; not given(): 0. Gradients have none.
struct MergePart {
  View out, lse, lse_low;
};

struct MergeProblem {
  std::vector<MergePart> parts;  // 1 to kMaxMergeParts of one shape
  View out, lse, lse_low;        // lse_low not given(): not wanted
};

struct MergeArgs {
  std::vector<MergeProblem> problems;
};

// With w_p = exp(lse_p - lse): dout_p = w_p dout; dlse_p = w_p (dlse + dout . (out_p - out)). 0
// where lse_p = -inf. w_p is computed anew from the parts.
struct MergeGradProblem {
  MergeProblem forward;           // with the out and lse that the forward wrote
  View dout, dlse;                // as out and lse; not given(): zero
  std::vector<MergePart> dparts;  // fully overwritten; a view not given(): not wanted
};

struct MergeGradArgs {
  std::vector<MergeGradProblem> problems;
};

// For ForEachView of launch.h.
template <class F>
void ForEachView(const MergeProblem& p, const F& f) {
  f(p.out), f(p.lse), f(p.lse_low);
  for (const MergePart& part : p.parts) f(part.out), f(part.lse), f(part.lse_low);
}
template <class F>
void ForEachView(const MergeGradProblem& p, const F& f) {
  ForEachView(p.forward, f);
  f(p.dout), f(p.dlse);
  for (const MergePart& part : p.dparts) f(part.out), f(part.lse);
}

}  // namespace attnd
