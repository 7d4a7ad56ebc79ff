// Which part of its work a walk of scan does.
#pragma once

namespace attnd::cuda {

struct ForwardPass {
  bool local = false;        // of keys alone, from zero: leaves states of segments
  bool whole_lines = false;  // a block takes all segments, and starts from s0
  bool for_rows = false;     // leaves row_d, dots, errors, states instead of out
  bool last = false;         // local: states of last segments are needed, too
};

struct BackwardPass {
  bool local = false;        // of queries alone, from zero: leaves adjoints of segments
  bool whole_lines = false;  // a block takes all segments, from ds_out, and leaves adjoints
  bool first = false;        // local: adjoints of first segments are needed, too
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
