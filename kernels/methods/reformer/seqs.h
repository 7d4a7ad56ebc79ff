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
  // [B,H,ReformerFarRows]: the rows of k and v that k2 and v2 hold; -1: none. Empty: there is no
  // k2.
  Tensor far_rows;
};

// `buckets` null: no sequence is hashed.
ReformerSeqs ReformerSeqsOf(Ops& ops, const Inputs& in, const ReformerOptions& o,
                            const ReformerBuckets* buckets);

// Rows of k2: keys that chunks at the ends of a round see beyond it, of all rounds. They are rows
// of their own where they are few, so that each row of k stands in one slot of a round and its
// gradient is stored, not summed. 0: they are rows of k, since a bias is not read for rows of k2.
int64_t ReformerFarRows(const ProblemShape& p, const ReformerOptions& o);

// How many parts the sequences of a problem have, at most.
int64_t ReformerPartsOf(const ProblemShape& p, const ReformerOptions& o);

}  // namespace attnd
