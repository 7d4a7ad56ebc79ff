// scan as a formula calls it: Ops::Scan. What it computes is in kernels/device/scan.h.
#pragma once

#include <vector>

#include "kernels/device/scan.h"
#include "kernels/ops/tensor.h"

namespace attnd {

using ScanSeqs = std::vector<std::vector<ScanSeq>>;  // [problem][b]

// All optional; log_decay, beta, s0 and z0 broadcast over B and Hkv.
struct ScanTensors {
  Tensor log_decay, beta, s0, z0;
  bool final_state = false;  // also give s_out, z_out
  bool wants_lse = true;     // else lse is empty
  // The formula returns what comes out, at most through views, copies and sums: a run that is asked
  // for gradients alone does not compute it. With a final state, where a scan may go on, it does.
  bool is_returned = false;
};

// out [B,H,Nq,Dv] of q's dtype and layout; lse [B,H,Nq] float32 = log of the normaliser. Gradients
// flow from all four to q, k, v and the tensors of ScanTensors.
struct ScanOut {
  Tensor out, lse, s_out, z_out;
};

}  // namespace attnd
