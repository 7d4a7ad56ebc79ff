// What the sequences of all problems see, as attend takes it.
#pragma once

#include <vector>

#include "kernels/method/method.h"
#include "kernels/methods/pattern/heads.h"

namespace attnd {

struct PatternSeqs {
  std::vector<AttendSeqs> parts;
  std::vector<PairTotal> visible_pairs;  // as in Outputs
};

// With lengths, offsets and segment ids of `in`. `seqs_differ`: see PatternExtras.
PatternSeqs SeqsOf(Ops& ops, const Inputs& in, bool causal, const std::vector<bool>& seqs_differ,
                   const PartsOfSeq& parts_of);

}  // namespace attnd
