// What the rows of a batch see, as attend takes it.
#pragma once

#include "kernels/methods/pattern/method.h"

namespace attnd {

struct PatternRows {
  std::vector<AttendRows> parts;
  std::vector<PairTotal> visible_pairs;  // as in Outputs
};

// With lengths, offsets and segment ids of `in`. `rows_differ`: see PatternExtras.
PatternRows RowsOf(Ops& ops, const Inputs& in, bool causal, bool rows_differ,
                   const PartsOfRow& parts_of);

}  // namespace attnd
