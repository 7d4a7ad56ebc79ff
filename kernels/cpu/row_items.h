// A list of problems as rows, and those as work items.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/core/integer.h"

namespace attnd {

// Cuts the rows of every problem into items of at most `per_item` rows: fixed by the problem alone,
// so that what an item computes does not depend on the list.
class RowItems {
 public:
  struct Item {
    int64_t problem, begin, end;  // rows [begin, end) of it
  };

  void Add(int64_t rows, int64_t per_item) {
    per_item = std::max<int64_t>(per_item, 1);
    problems_.push_back({count_, rows, per_item});
    count_ += CeilDiv(rows, per_item);
  }
  int64_t count() const { return count_; }
  Item operator[](int64_t item) const {
    const auto after =
        std::upper_bound(problems_.begin(), problems_.end(), item,
                         [](int64_t number, const Problem& p) { return number < p.first; });
    const int64_t n = after - problems_.begin() - 1;
    const Problem& p = problems_[n];
    const int64_t begin = (item - p.first) * p.per_item;
    return {n, begin, std::min(begin + p.per_item, p.rows)};
  }

 private:
  struct Problem {
    int64_t first;  // number of its first item
    int64_t rows, per_item;
  };
  std::vector<Problem> problems_;
  int64_t count_ = 0;
};

}  // namespace attnd
