// Which part of its work a walk of scan does.
#pragma once

#include <cstdint>

namespace attnd::cuda {

// Walks of whole lines are cut into launches: this one takes segments [begin, end) of each line, as
// far as it has them, and leaves the state to the next one. Walks backward begin with the last.
struct WalkCut {
  int64_t begin = 0, end = INT64_MAX;
  bool is_odd = false;  // every other launch
};

struct ForwardPass {
  bool local = false;        // of keys alone, from zero: leaves states of segments
  bool whole_lines = false;  // a block takes all segments of the cut, from s0 on
  bool for_rows = false;     // leaves row_d, dots, errors, states instead of out
  bool last = false;         // local: states of last segments are needed, too
  WalkCut cut = {};          // whole_lines
};

struct BackwardPass {
  bool local = false;        // of queries alone, from zero: leaves adjoints of segments
  bool whole_lines = false;  // a block takes all segments of the cut, from ds_out on, and leaves
                             // adjoints
  bool first = false;        // local: adjoints of first segments are needed, too
  WalkCut cut = {};          // whole_lines
};

struct ChunkStatesPass {
  bool backward = false;  // adjoints of segments, of queries alone, instead of states
  bool all = false;       // those are needed that no other segment starts from
};

struct ChunkGradPass {
  enum Of { kQueries, kKeys, kValues } of = kQueries;  // what it writes the gradients of
};

struct CombinePass {
  bool backward = false, final = false;
};

}  // namespace attnd::cuda
