// Factorised attention: windows, combs in residue order, segments with summary columns.
#pragma once

#include <cstdint>

#include "kernels/pattern/shapes/seq.h"

namespace attnd {

// Child et al. 2019, section 4.3. Local: |p - j| < stride; global: (p - j) mod stride = 0. Global
// keys are a part of their own, in residue order.
PatternParts StridedParts(const PatternSeq& seq, int64_t stride, Half half);

// Child et al. 2019, section 4.3. Local: the own segment of `stride` positions; global: the
// `summary` columns of every segment, sub-block `vertical` of it (0: the last one), which are
// appended keys.
struct FixedSegments {
  int64_t stride = 1, summary = 1, vertical = 0;
  bool horizontal = false;    // summary rows see everything; REQUIRES: not causal, kBoth
  bool tail_summary = false;  // a short last segment keeps its summary (DeepSpeed)
};
PatternSource FixedSource(const PatternSeq& seq, const FixedSegments& segments, Half half);

}  // namespace attnd
