// What the query heads of one sequence see.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/method/problem.h"
#include "kernels/pattern/shapes/seq.h"

namespace attnd {

// One sequence of one problem; packed sequences are problems of their own.
struct SeenSeq : PatternSeq {
  const ProblemShape& problem;
  size_t p = 0;  // place of the problem in the list
  int64_t b = 0;
  // On a dry stream no index tensor has values, and at most `most_sources` sources are described.
  bool is_planned = false;
  int64_t most_sources = INT64_MAX;
  std::span<const int32_t> ids_q, ids_k;  // segment ids, for sources without a spec
};

// Disjoint parts of what each query head sees; one entry: all heads see the same. Every head has
// the same number of parts.
using HeadParts = std::vector<PatternParts>;
using PartsOfSeq = std::function<HeadParts(const SeenSeq& seq)>;

// Every head sees the same.
HeadParts AllHeads(PatternSource source);

// For a plan: one source that stands for `heads` heads, each of which has its own when it runs.
PatternSource OfHeads(PatternSource source, int64_t heads);

// How heads differ in what they see.
struct HeadRule {
  int64_t count = 1;   // heads that are described; 1: all heads see the same
  int64_t period = 0;  // head h sees what head h - period sees; 0: there is no period
  // Heads differ by drawn numbers or values of tensors only, which a plan does not read.
  bool differ_by_values = false;
  int64_t work = 1;  // to describe one head, in sources
  // Answers one source that stands for all heads in a plan that cannot describe them one by one.
  // Empty: a plan describes some of them.
  std::function<PatternSource()> bound = {};
};

// What `parts(h)` shows head h. A run describes all heads, and those of one period share their
// parts. A plan describes as few as give the same numbers, at most seq.most_sources: one head where
// they differ by values, one period where H is a multiple of it, else `bound` or every n-th head.
HeadParts EachHead(const SeenSeq& seq, const HeadRule& rule,
                   const std::function<PatternParts(int64_t head)>& parts);

}  // namespace attnd
