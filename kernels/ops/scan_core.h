// The recurrence of a composed scan.
#pragma once

#include <vector>

#include "kernels/ops/ops.h"

namespace attnd {

// Over problems of one sequence each (or of several that are alike), the keys in order:
//   S' = e^decay S,  S = S' + key (x) beta (value - S'^T key)
// where the subtraction is that of the delta rule, in all columns but the last. Query i reads
// S^T q_i after key i + offset. All float32.
//
// A launch for each step, over the problems that have a key left. What a problem takes is allocated
// for it alone and does not depend on the others of the list, so that plans bound a batch.
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

  std::vector<int64_t> offsets;  // per problem
  bool is_delta = false;

  Result Run(Ops& ops, const std::vector<Tensor>& in) const;
};

}  // namespace attnd
