// What the patterns of methods follow from: structure follows Nq and Nk; lengths only leave rows
// out.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/pattern/source.h"

namespace attnd {

// One batch row: p = i + offset is the position of query i; causal adds j <= p.
struct PatternSeq {
  int64_t Nq = 0, Nk = 0;
  Lengths lengths;
  int64_t offset = 0;
  bool causal = false;
};
// Disjoint, for Ops::Attend to merge.
using PatternParts = std::vector<PatternSource>;

}  // namespace attnd
