// A listed pattern of random pairs, repeats among them; every fifth query sees nothing.
#pragma once

#include <algorithm>
#include <random>

#include "kernels/device/pattern.h"

namespace attnd::testing {

// A pattern of Nq x Nk rows with lengths nq and nk; `longest`: most keys of a query.
inline Pattern RandomLists(std::mt19937* random, int64_t Nq, int64_t Nk, int64_t nq, int64_t nk,
                           int64_t longest) {
  Pattern pattern{.Nq = Nq, .Nk = Nk};
  std::vector<std::vector<int32_t>> queries(static_cast<size_t>(Nk));
  const auto append = [](std::vector<int32_t> listed, PairList* list) {
    std::sort(listed.begin(), listed.end());
    list->columns.insert(list->columns.end(), listed.begin(), listed.end());
    list->begin.push_back(static_cast<int64_t>(list->columns.size()));
  };
  pattern.keys_of.begin = pattern.queries_of.begin = {0};
  for (int64_t i = 0; i < Nq; ++i) {
    std::vector<int32_t> keys;
    const int64_t count = static_cast<int64_t>((*random)() % (longest + 1));
    for (int64_t n = 0; i < nq && nk > 0 && i % 5 != 4 && n < count; ++n) {
      keys.push_back(static_cast<int32_t>((*random)() % nk));
      if ((*random)() % 8 == 0) keys.push_back(keys.back());
    }
    for (const int32_t key : keys) queries[key].push_back(static_cast<int32_t>(i));
    append(keys, &pattern.keys_of);
  }
  for (const auto& listed : queries) append(listed, &pattern.queries_of);
  pattern.visible_pairs = static_cast<int64_t>(pattern.keys_of.columns.size());
  return pattern;
}

// AttendSeq::longest_list, of a pattern.
inline int64_t LongestList(const Pattern& pattern) {
  int64_t longest = 0;
  const std::vector<int64_t>& begin = pattern.keys_of.begin;
  for (size_t i = 0; i + 1 < begin.size(); ++i)
    longest = std::max(longest, begin[i + 1] - begin[i]);
  return longest;
}

}  // namespace attnd::testing
