// Sums over keys that are kept relative to a stabiliser that rises from key to key.
#pragma once

#include <vector>

#include "kernels/methods/linear/scan_split.h"

namespace attnd {

// What x [B,heads,Nk,1] has at the last key that each query sees: [B,heads,Nq,1] with Nq of
// `queries` [..,Nq,..]. Before all keys: zeros or, has_first, what x [B,heads,1 + Nk,1] begins
// with.
Tensor LastSeen(Ops& ops, const Tensor& x, bool has_first, const std::vector<Shape>& queries,
                const ScanSplit& split);

// Of keys: the sums of their values [B,Hkv,Dv], and their number [B,1,1,1]. Empty tensors: no keys.
struct KeyTotals {
  Tensor values, count;
};
// Of the keys `before` and those with values v [B,Hkv,Nk,Dv].
KeyTotals TotalsAfter(Ops& ops, const KeyTotals& before, const Tensor& v);

// Adds to a state what `eps` on top of every feature of these keys makes of it.
void AddConstant(Ops& ops, double eps, const KeyTotals& of_keys, Tensor* s, Tensor* z);

struct ConstantFeature {
  double eps = 0;             // what every feature of every key has on top
  double den_eps = 0;         // den(d) of ScanDen::kJax
  bool is_normalised = true;  // out = num / den(d), else num
};
// While log_decay rescales the features of earlier keys, a constant that is added to them keeps its
// size. It adds to sums over the c keys that query i sees
//   num_i += eps (sum_f phi_q,if) sum_j v_j,  d_i += eps (sum_f phi_q,if) c
// where the keys `before` the first one count as well. `scanned`: of a causal scan without it, with
// ScanDen::kOne; its final state stays.
void AddToKeys(Ops& ops, const ConstantFeature& constant, const Tensor& phi_q, const Tensor& v,
               const KeyTotals& before, const ScanSplit& split, ScanOut* scanned);

}  // namespace attnd
