// The keys and values of long_short: normed ones, and those that stand for segments.
#pragma once

#include "kernels/methods/long_short/options.h"
#include "kernels/ops/ops.h"

namespace attnd {

struct LongShortKeys {
  Tensor k, v;            // [B,Hkv,Nk,D] [B,Hkv,Nk,Dv]; empty: nothing reads them
  Tensor long_k, long_v;  // [B,Hkv,S r,D] [B,Hkv,S r,Dv], float32; empty: rank is 0
};

LongShortKeys KeysOf(Ops& ops, const Inputs& in, const LongShortOptions& o);

}  // namespace attnd
