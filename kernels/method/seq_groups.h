// Batch rows and packed sequences that are alike, which a plan counts once.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/method/problem.h"
#include "kernels/pattern/base/window.h"

namespace attnd {

// `count` rows of equal lengths.
struct SeqGroup {
  Lengths lengths;
  int64_t offset = 0;  // position of query 0
  int64_t count = 1;
};

// Equal ones together, in no order; all equal: in two groups, so that no list of one problem stands
// for several. Of more than `most` different ones lengths and offsets are
// rounded up, lengths at most to those of `largest`, until so many are left: memory and pairs
// become upper bounds. O(n log n).
std::vector<SeqGroup> Alike(std::vector<SeqGroup> rows, size_t most, const Lengths& largest);

// Rows of a batch, by q_lengths, kv_lengths and causal_offset. Without these it is one group of B,
// in constant time.
std::vector<SeqGroup> SeqGroupsOf(const ProblemShape& problem, size_t most);

// The same, neighbours that are equal together, in the order of rows, for a run; `is_planned`: as
// above.
std::vector<SeqGroup> SeqRunsOf(const ProblemShape& problem, bool is_planned);

// What a plan describes one by one; of more it makes groups. So many take some milliseconds.
constexpr size_t kPlannedSeqs = 1024, kPlannedProblems = 192;
// Sources that a plan describes, of all heads, rows and sequences.
constexpr int64_t kPlannedSources = 4096;

}  // namespace attnd
