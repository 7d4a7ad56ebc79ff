// What the sequences of reformer see.
#pragma once

#include <vector>

#include "kernels/methods/reformer/hash.h"
#include "kernels/ops/attend.h"

namespace attnd {

// A sequence of n rows is a list of parts over disjoint slots: of all keys, where windows reach all
// chunks or nothing is hashed, then of the rounds. Shorter lists see nothing in what they lack.
struct ReformerSeqs {
  std::vector<AttendSeqs> parts;
  std::vector<PairTotal> visible_pairs;  // with one for each token and itself
  // [B,H,N]: the score of a token with itself, once for each slot that shows it; -inf beyond the
  // queries.
  Tensor self_lse;
};

// `buckets` null: no sequence is hashed.
ReformerSeqs ReformerSeqsOf(Ops& ops, const Inputs& in, const ReformerOptions& o,
                            const ReformerBuckets* buckets);

// How many parts the sequences of a problem have, at most.
int64_t ReformerPartsOf(const ProblemShape& p, const ReformerOptions& o);

}  // namespace attnd
