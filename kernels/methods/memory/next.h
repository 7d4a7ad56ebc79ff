// The memory that a call hands to the next one. Memories are constants.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels/method/seq_split.h"

namespace attnd {

// A stretch of rows of a part: rows [begin, end) of `x`, which has one problem for each part.
struct Stretch {
  Tensor x;
  std::vector<int64_t> begin, end;
};

struct NextMemory {
  std::string name;  // "mem", "cmem"
  // Of keys and of values: what the memory of a part consists of, oldest rows first.
  std::vector<Stretch> k, v;
  // Its rows, for the exact lengths of a sequence.
  std::function<int64_t(const ProblemShape& problem, const SeqGroup& seq)> rows;
};

// The outputs <name>_k, <name>_v, as long as the longest sequence's, which end at their last row,
// and <name>_lengths.
void AddNextMemory(Ops& ops, const Inputs& in, const SeqSplit& split, const NextMemory& next,
                   std::map<std::string, Tensor>* outputs);

}  // namespace attnd
