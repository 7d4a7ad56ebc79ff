// Blocks of keys and values in the order that their scores give.
#pragma once

#include "kernels/methods/sinkhorn/scores.h"

namespace attnd {

struct SortedKeys {
  Tensor k, v;  // [B,H,keys,D] [B,H,keys,Dv], float32
  Tensor bias;  // [B,H,1,keys] or [1,1,1,1], -inf: not visible; empty: nothing is added
};
// q, k, v: of the parts.
SortedKeys Sorted(const SinkhornRun& run, const Tensor& q, const Tensor& k, const Tensor& v);

}  // namespace attnd
