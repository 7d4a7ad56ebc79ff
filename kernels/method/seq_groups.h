// Sequences of a batch, packed ones included, that are alike: a plan counts them once.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/method/problem.h"
#include "kernels/pattern/base/window.h"

namespace attnd {

// `count` sequences of equal lengths.
struct SeqGroup {
  Lengths lengths;
  int64_t offset = 0;  // position of query 0
  int64_t count = 1;
  int64_t mem = 0, cmem = 0;  // rows of mem_k and of cmem_k, which come before the keys
  bool is_rounded = false;    // by Alike
};

// Equal sequences in one group, in no order; if all are equal, in two groups, since a list of one
// entry is planned as one sequence. Of more than `most` different groups, lengths and offsets are
// rounded up, lengths at most to those of `largest`, until `most` are left: memory and pairs become
// upper bounds. O(n log n).
std::vector<SeqGroup> Alike(std::vector<SeqGroup> seqs, size_t most, const Lengths& largest);

// Whether pairs that are counted of these groups are estimates.
bool AreRounded(const std::vector<SeqGroup>& groups);

// Rows of the memory `name` ("mem_k", "cmem_k") as sent; 0: it was not.
int64_t MemoryRows(const ProblemShape& problem, absl::string_view name);

// Lengths where queries and keys are the same tokens: without q_lengths, and with Nq = Nk, as many
// queries as keys count.
Lengths OfSameTokens(const ProblemShape& problem, Lengths lengths);

// Whether lengths of queries, keys or memories were sent.
bool HasLengths(const ProblemShape& problem);

// The B sequences of a problem by q_lengths, kv_lengths, mem_lengths, cmem_lengths and
// causal_offset. Without these they are one group, in constant time.
std::vector<SeqGroup> SeqGroupsOf(const ProblemShape& problem, size_t most);

// The most sequences and problems that a plan describes, which takes some milliseconds.
constexpr size_t kPlannedSeqs = 1024, kPlannedProblems = 192;

// For a run: the same in the order of the batch, equal neighbours in one group, which are one
// problem. `is_planned`: as SeqGroupsOf with `most`, but where all are equal they are one group, as
// in a run.
std::vector<SeqGroup> SeqRunsOf(const ProblemShape& problem, bool is_planned,
                                size_t most = kPlannedProblems);

// The most sources that a plan describes, of all heads and sequences.
constexpr int64_t kPlannedSources = 4096;

}  // namespace attnd
