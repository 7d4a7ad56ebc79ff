// attend: softmax attention over a pattern. The contract of Ops::Attend.
#pragma once

#include <vector>

#include "kernels/backend.h"
#include "kernels/ops/tensor.h"

namespace attnd {

struct AttendParams {
  double scale = 1;
  std::vector<std::vector<AttendRow>> rows;  // [problem][b]
};

// out [B,H,Nq,Dv] of q's dtype and layout; lse [B,H,Nq] float32, natural log, -inf where a query
// sees no key. Gradients flow to q, k, v from out and from lse. See AttendArgs in backend.h.
struct AttendOut {
  Tensor out, lse;
};

}  // namespace attnd
