// Sums over keys that are kept relative to a stabiliser that rises from key to key.
#pragma once

#include <vector>

#include "kernels/methods/linear/scan_split.h"

namespace attnd {

// What x [B,heads,Nk,1] has at the last key that each query sees, zeros before all keys:
// [B,heads,Nq,1] with Nq of `queries` [..,Nq,..].
Tensor LastSeen(Ops& ops, const Tensor& x, const std::vector<Shape>& queries,
                const ScanSplit& split);

struct ConstantFeature {
  double eps = 0;             // what every feature of every key has on top
  double den_eps = 0;         // den(d) of ScanDen::kJax
  bool is_normalised = true;  // out = num / den(d), else num
};
// While log_decay rescales the features of earlier keys, a constant that is added to them keeps its
// size. It adds to sums over the c keys that query i sees
//   num_i += eps (sum_f phi_q,if) sum_j v_j,  d_i += eps (sum_f phi_q,if) c
// and to a state likewise. `scanned`: of a causal scan without it, with ScanDen::kOne.
void AddToKeys(Ops& ops, const ConstantFeature& constant, const Tensor& phi_q, const Tensor& v,
               const ScanSplit& split, ScanOut* scanned);

}  // namespace attnd
