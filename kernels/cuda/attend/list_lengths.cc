#include "kernels/cuda/attend/list_lengths.h"

#include <algorithm>

namespace attnd::cuda {
namespace {

int64_t LongestRow(const PairList& list) {
  int64_t longest = 0;
  for (size_t row = 0; row + 1 < list.begin.size(); ++row) {
    longest = std::max(longest, list.begin[row + 1] - list.begin[row]);
  }
  return longest;
}

// Of all patterns of listed sequences.
int64_t LongestRow(const AttendProblem& problem, PairList Pattern::*list) {
  int64_t longest = 0;
  const Pattern* last = nullptr;
  for (const AttendSeq& seq : problem.seqs) {
    if (!seq.is_listed) continue;
    const int64_t heads = std::max<int64_t>(1, std::ssize(seq.head_patterns));
    for (int64_t h = 0; h < heads; ++h) {
      const Pattern* pattern = seq.Of(h);
      // Those that follow one another are often one.
      if (pattern == nullptr || pattern == last) continue;
      longest = std::max(longest, LongestRow(pattern->*list));
      last = pattern;
    }
  }
  return longest;
}

}  // namespace

int64_t LongestListOfQueries(const AttendProblem& problem, bool is_dry) {
  if (!is_dry) return LongestRow(problem, &Pattern::keys_of);
  int64_t longest = 0;
  for (const AttendSeq& seq : problem.seqs) longest = std::max(longest, seq.longest_list);
  return longest;
}

int64_t LongestListOfKeys(const AttendProblem& problem, bool is_dry) {
  const int64_t group = problem.q.shape[1] / problem.k.shape[1];
  if (!is_dry) return group * LongestRow(problem, &Pattern::queries_of);
  int64_t longest = 0;
  for (const AttendSeq& seq : problem.seqs) {
    longest = std::max(longest, seq.nq * seq.longest_list);
  }
  return group * longest;
}

}  // namespace attnd::cuda
