// Attention over memories and the segment, with scores by content and by distance (Dai et al. 2019,
// section 3.3):
//   s_ij = scale ((q_i + u) . K_j + (q_i + v_bias) . r(d)) + bias_ij,  d = i + M - j >= 0
#pragma once

#include <string>
#include <vector>

#include "kernels/method/seq_split.h"
#include "kernels/methods/memory/options.h"

namespace attnd {

// N(0, 0.02^2), for u, v_bias and w_r.
DrawParams RelativeDraw(uint64_t seed, std::string name);

// What attend was called with: one problem for each part of the split.
struct MemoryAttention {
  Tensor q, k, v;  // q + u; [cmem; mem; segment]
  AttendParams params;
  AttendSeqs seqs;
  AttendTensors terms;
  AttendOut out;
  std::vector<PairTotal> visible_pairs;  // of each problem of the request
};

// out, lse and the pairs. Memories are constants unless grad_memory.
Outputs OutputsOf(const Inputs& in, const SeqSplit& split, const MemoryAttention& attended,
                  const MemoryOptions& o);

MemoryAttention AttendMemory(Ops& ops, const Inputs& in, const SeqSplit& split,
                             const MemoryOptions& o);

}  // namespace attnd
