// The recurrence of a composed scan.
#pragma once

#include <functional>
#include <vector>

#include "kernels/ops/ops.h"

namespace attnd {

// Over problems of one row each (or of several that are alike), the keys in order:
//   S' = e^decay S,  S = S' + key (x) beta (value - learned S'^T key)
// Query i reads S^T q_i after key i + offset.
struct ScanCore {
  // Inputs of Run. Decay and beta may be empty.
  enum Input : size_t {
    kQuery,  // [c,Hkv,G,Nq,D]
    kKey,    // [c,Hkv,Nk,D]
    kValue,  // [c,Hkv,Nk,E]
    kDecay,  // [c,Hkv,Nk,1|D]
    kBeta,   // [c,Hkv,Nk,1]
    kState,  // [c,Hkv,D,E]
  };
  struct Result {
    Tensor reads;  // [c,Hkv,G,Nq,E]
    Tensor state;  // after the last key
  };

  std::vector<int64_t> offsets;           // per problem
  Tensor learned;                         // [1,1,1,E], 1 where the delta rule holds; empty: nowhere
  std::function<void(Ops&)> count_alike;  // tells an Ops what the lists stand for on a dry stream

  Result Run(Ops& ops, const std::vector<Tensor>& in) const;
};

}  // namespace attnd
