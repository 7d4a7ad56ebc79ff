// The patterns of the methods that have a fixed or a drawn structure: one source, or disjoint parts
// for Ops::Attend to merge. Structure follows Nq and Nk; lengths only leave rows out.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/pattern/pattern.h"
#include "kernels/pattern/predicates/predicate.h"

namespace attnd {

// One batch row: p = i + offset is the position of query i; causal adds j <= p.
struct PatternRow {
  int64_t Nq = 0, Nk = 0;
  Lengths lengths;
  int64_t offset = 0;
  bool causal = false;
};
using PatternParts = std::vector<PatternSource>;

// Every key.
PatternSource AllKeys(const PatternRow& row);

// Which half of a factorised pattern; kBoth: one softmax over both.
enum class Half : uint8_t { kBoth, kNear, kFar };

// Child et al. 2019, section 4.3. Near: |p - j| < stride; far: (p - j) mod stride = 0. The far keys
// that are not near stand in residue order.
PatternParts StridedParts(const PatternRow& row, int64_t stride, Half half);

// Child et al. 2019, section 4.3. Near: the own segment of `stride` positions; far: the `summary`
// columns of every segment, sub-block `vertical` of it (0: the last one). They stand once more as
// appended keys.
struct FixedSegments {
  int64_t stride = 1, summary = 1, vertical = 0;
  bool horizontal = false;    // summary rows see everything; REQUIRES: not causal, kBoth
  bool tail_summary = false;  // a short last segment keeps its summary (DeepSpeed)
};
PatternSource FixedSource(const PatternRow& row, const FixedSegments& segments, Half half);

// Beltagy et al. 2020, section 3.1. `globals`: positions that are global, ascending, in [0, Nk).
// Local rows see |p - j| <= window dilation with (p - j) mod dilation = 0, and every global key.
PatternSource LongformerLocal(const PatternRow& row, int64_t window, int64_t dilation,
                              std::span<const int32_t> globals);
// Global rows see every key.
PatternSource LongformerGlobal(const PatternRow& row, std::span<const int32_t> globals);
// All rows, where both kinds read the same q, k and v.
PatternSource LongformerBoth(const PatternRow& row, int64_t window, int64_t dilation,
                             std::span<const int32_t> globals);

// Keys by list: query i sees keys[i R, (i + 1) R); entries outside [0, Nk) are ignored. A key that
// is listed twice counts once, or (multiset) twice. `ids_q`, `ids_k` as in WithinSegments, or
// empty.
struct KeyLists {
  std::vector<int32_t> keys;  // empty: DrawnKeys (draws.h), when the pattern is built
  uint64_t seed = 0;          // of the draw
  int64_t head = 0;           // likewise
  int64_t R = 0;
  bool multiset = false;
  bool include_self = false;  // adds j = p where it is a key and not listed
  std::vector<int32_t> ids_q, ids_k;
};
PatternSource ListSource(const PatternRow& row, KeyLists lists);

// Blocks of blocks.bq x blocks.bk rows of i and j; with `multiset` a run's `times` is added as ln
// times.
PatternSource BlockSource(const PatternRow& row, BlockRows blocks, bool multiset);

// Zaheer et al. 2020, appendix D, on blocks of positions p - globals and j - globals. `random`
// [inner rows, r], -1: unused, lists block indices for the rows that are not global.
struct BigBird {
  int64_t block = 64;
  int64_t half_window = 1;      // u
  int64_t left = 1, right = 1;  // global blocks
  int64_t globals = 0;          // ETC form: positions [0, globals) see all and are seen by all
  std::vector<int32_t> random;
  int64_t r = 0;
  bool multiset = false;

  // Of N positions: blocks behind the globals, and query blocks that have random ones.
  int64_t Blocks(int64_t N) const;
  int64_t InnerRows(int64_t N) const;
};
PatternSource BigBirdSource(const PatternRow& row, BigBird bigbird);

// Qiu et al. 2019, section 3: blk(x) = floor(x nb / Nk), visible iff perm[blk(p)] = blk(j).
PatternSource BlockwiseSource(const PatternRow& row, std::span<const int32_t> perm);
// Whether its queries stand in the order of their key blocks.
bool BlockwiseGathers(const PatternRow& row, int64_t nb);

// Ho et al. 2019, section 3: the line of cell i along `axis` of a row-major grid. `is_labelled`: a
// pair's label is the coordinate of its key.
PatternSource AxialSource(const PatternRow& row, std::span<const int64_t> grid, int64_t axis,
                          bool is_labelled = false);
// Cells that differ in at most one coordinate: a part an axis, the cell itself in the first.
PatternParts AxialCross(const PatternRow& row, std::span<const int64_t> grid);

// Parmar et al. 2018, section 3.3 (1D): query blocks of lq positions and lm positions before them
// (and, if not causal, after them).
PatternSource ImageLocal1d(const PatternRow& row, int64_t lq, int64_t lm);
// The same in 2D; `causal` is in block-raster order.
struct ImageBlocks {
  int64_t height = 0, width = 0;
  int64_t block_height = 8, block_width = 16;
  int64_t flange_height = 8, flange_width = 16;
};
PatternSource ImageLocal2d(const PatternRow& row, const ImageBlocks& image);

// Ainslie et al. 2020, section 3: positions [0, ng) are global, the others long. Long rows see |i -
// j| <= radius among the long ones, and the globals (hard_l2g: only that of their sentence). Global
// rows see the globals and the long ones (hard_g2l: only those of their sentence).
struct Etc {
  int64_t ng = 0, radius = 84;
  bool hard_l2g = false, hard_g2l = false;
  bool is_labelled = false;
  int64_t max_distance = 12;          // k of the labels
  std::vector<int32_t> sentence_ids;  // of the long positions; empty: floor(c ng / nl)
  // Only positions of equal examples see each other; numbers of any sign, none on a dry stream.
  bool has_examples = false;
  std::vector<int32_t> long_examples, global_examples;
  // Labels in place of the computed ones, row-major: [nl, 2 radius + 1] (column radius: itself),
  // [nl, ng], [ng, ng], [ng, nl]; empty: computed.
  std::vector<int32_t> l2l_ids, l2g_ids, g2g_ids, g2l_ids;
  int64_t sent_ids = 0;  // how many of all these are sent, told on a dry stream, too
};
// Computed labels, c - a being the distance inside a half: 0, min(c - a, k) or k + min(a - c, k);
// across halves 2k + 1 + [the long one's sentence is the global one].
PatternSource EtcLong(const PatternRow& row, Etc etc);
PatternSource EtcGlobal(const PatternRow& row, Etc etc);
// All rows, where both kinds read the same k and v.
PatternSource EtcBoth(const PatternRow& row, Etc etc);

// Keys [0, nk) within `local` (none: not at all) and, appended, rows of a second source or -1, of
// which `visible` (of slots 0, 1, ..) shows some.
struct SecondKeys {
  std::vector<int32_t> rows;  // from Nk on
  Visible visible;            // null: every pair
  PatternCounts counts;
};
PatternSource WithSecondKeys(const PatternRow& row, const std::optional<Window>& local,
                             const SecondKeys& second);

// Kitaev et al. 2020, "LSH attention", one round of several. The keys of a chunk are its own and
// those of `before` chunks before and `after` behind it. The token itself is left out.
struct ReformerRounds {
  int64_t rounds = 1, n = 0;     // n rows are sorted, the rest see nothing
  std::vector<int32_t> order;    // [rounds, n]: rows by (bucket, position)
  std::vector<int32_t> buckets;  // [rounds, n] of rows; read if only the own bucket is seen
  int64_t chunk = 1, before = 1, after = 0;
  bool flat = true;  // neighbours of the first chunk are the last of the round before; else own
  bool causal = false;
  bool across = true;  // sees other buckets and rounds
  bool unique = true;  // a key that other slots or earlier rounds show is not shown again
};
PatternSource ReformerRound(int64_t N, ReformerRounds rounds, int64_t round);

}  // namespace attnd
