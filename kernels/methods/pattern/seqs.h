// What the rows of a batch see, as attend takes it.
#pragma once

#include "kernels/methods/pattern/method.h"

namespace attnd {

struct PatternSeqs {
  std::vector<AttendSeqs> parts;
  std::vector<PairTotal> visible_pairs;  // as in Outputs
};

// With lengths, offsets and segment ids of `in`. `seqs_differ`: see PatternExtras.
PatternSeqs RowsOf(Ops& ops, const Inputs& in, bool causal, bool seqs_differ,
                   const PartsOfSeq& parts_of);

}  // namespace attnd
