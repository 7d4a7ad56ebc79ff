// Keys that stand for segments of a sequence, alone and beside a window of single keys.
#pragma once

#include <cstdint>

#include "kernels/pattern/base/window.h"
#include "kernels/pattern/shapes/seq.h"

namespace attnd {

// Zhu et al. 2021, section 3.3: segment t holds the keys [t length, (t + 1) length) and has the
// compressed keys [t rank, (t + 1) rank). A segment that begins at or beyond lengths.nk has none.
struct CompressedSegments {
  int64_t length = 1, rank = 1;  // >= 1
  // Of a causal sequence: the query at p sees segment t if t < floor(p / length) or, completed, if
  // p >= (t + 1) length - 1. Else every query sees all.
  bool completed = false;

  int64_t Keys(int64_t nk) const;  // of nk keys
};

// The pairs of queries and compressed keys; rows of k are the compressed keys.
PatternSource CompressedSource(const PatternSeq& seq, const CompressedSegments& segments);

// The window, and the compressed keys as rows of k2.
PatternSource WindowAndCompressed(const PatternSeq& seq, const Window& window,
                                  const CompressedSegments& segments);

}  // namespace attnd
