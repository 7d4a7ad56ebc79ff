// attend as a formula calls it: Ops::Attend. What it computes is in kernels/device/attend.h.
#pragma once

#include <memory>
#include <vector>

#include "kernels/device/attend.h"
#include "kernels/ops/tensor.h"

namespace attnd {

// Visible pairs of a problem, over its sequences and query heads.
struct PairTotal {
  double known = 0;
  std::vector<std::shared_ptr<const PairCount>> counted;  // complete once attend has run

  PairTotal& operator+=(const PairTotal& more);
  double total() const;
};

// [problem][b]
using AttendSeqs = std::vector<std::vector<AttendSeq>>;

// AttendTerms as tensors, of any float dtype where it requires float32. Dimensions of 1 repeat: all
// four of bias, alibi_slopes [B|1,H], sinks [B|1,H], r [B|1,H|1,L,D], row_weight [B|1,H|1,Nq].
struct AttendTensors {
  Tensor k2, v2, bias, alibi_slopes, sinks, table, q_rel, r, row_weight;
};

// out [B,H,Nq,Dv] of q's dtype and layout; lse [B,H,Nq] float32, natural log, -inf where a query
// sees no key; lse_low as AttendProblem::lse_low. Both are empty where weighting is not softmax.
// Gradients flow from out and lse to q, k, v and every tensor of AttendTensors but row_weight,
// which is a constant.
struct AttendOut {
  Tensor out, lse;
  Tensor lse_low = {};  // empty in a part of a merge: 0
};

}  // namespace attnd
