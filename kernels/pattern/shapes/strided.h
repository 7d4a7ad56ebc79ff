// Factorised attention: windows, combs in residue order, segments with summary columns.
#pragma once

#include <cstdint>

#include "kernels/pattern/shapes/seq.h"

namespace attnd {

// Which half of a factorised pattern; kBoth: one softmax over both.
enum class Half : uint8_t { kBoth, kNear, kFar };

// Child et al. 2019, section 4.3. Near: |p - j| < stride; far: (p - j) mod stride = 0. The far keys
// that are not near stand in residue order.
PatternParts StridedParts(const PatternSeq& row, int64_t stride, Half half);

// Child et al. 2019, section 4.3. Near: the own segment of `stride` positions; far: the `summary`
// columns of every segment, sub-block `vertical` of it (0: the last one). They stand once more as
// appended keys.
struct FixedSegments {
  int64_t stride = 1, summary = 1, vertical = 0;
  bool horizontal = false;    // summary rows see everything; REQUIRES: not causal, kBoth
  bool tail_summary = false;  // a short last segment keeps its summary (DeepSpeed)
};
PatternSource FixedSource(const PatternSeq& row, const FixedSegments& segments, Half half);

}  // namespace attnd
