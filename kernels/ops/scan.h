// scan: chunked linear attention with feature maps. The contract of Ops::Scan.
#pragma once

#include <vector>

#include "kernels/backend.h"
#include "kernels/ops/tensor.h"

namespace attnd {

using ScanRows = std::vector<std::vector<ScanRow>>;  // [problem][b]

// out [B,H,Nq,Dv] of q's dtype and layout; lse [B,H,Nq] float32 = log of the normaliser. Gradients
// flow to q, k, v from out and from lse. See ScanArgs in backend.h.
struct ScanOut {
  Tensor out, lse;
};

}  // namespace attnd
