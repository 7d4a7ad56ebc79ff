// Global and long halves of a sequence, and their relative labels.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/pattern/shapes/seq.h"

namespace attnd {

// Ainslie et al. 2020, section 3: positions [0, ng) are global, the others long. Long rows see |i -
// j| <= radius among the long ones, and the globals (hard_l2g: only that of their sentence). Global
// rows see the globals and the long ones (hard_g2l: only those of their sentence).
struct Etc {
  int64_t ng = 0, radius = 84;
  bool hard_l2g = false, hard_g2l = false;
  bool is_labelled = false;
  int64_t max_distance = 12;          // k of the labels
  std::vector<int32_t> sentence_ids;  // of the long positions; empty: floor(c ng / nl)
  // Only positions of equal examples see each other; any numbers, empty on a dry stream.
  bool has_examples = false;
  std::vector<int32_t> long_examples, global_examples;
  // Labels, row-major: [nl, 2 radius + 1] (column `radius`: the position itself), [nl, ng],
  // [ng, ng], [ng, nl]; empty: computed.
  std::vector<int32_t> l2l_ids, l2g_ids, g2g_ids, g2l_ids;
  int64_t sent_ids = 0;  // how many of all these numbers are sent; known on a dry stream, too
};
// Long rows are the local half, global rows the global one. Computed labels of query a and key c in
// the same half: min(c - a, k) if c >= a, else k + min(a - c, k); in different halves: 2k + 2 if
// the global position is the sentence of the long one, else 2k + 1.
PatternSource EtcSource(const PatternSeq& seq, Etc etc, Half half);

}  // namespace attnd
