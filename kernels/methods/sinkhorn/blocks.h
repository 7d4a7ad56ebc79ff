// The blocks of a sequence of sinkhorn: which are sorted, and what queries see of them.
#pragma once

#include <cstdint>

#include "kernels/method/method.h"
#include "kernels/methods/sinkhorn/options.h"
#include "kernels/pattern/base/window.h"
#include "kernels/pattern/shapes/sorted_blocks.h"

namespace attnd {

// `rows` of `columns` key blocks are scored: row r belongs to query block first + r or, with
// sortcut and topk, to all queries. The keys of a row are `picks` sorted blocks of `slots` keys.
// Without rows there are no columns and no picks.
struct SinkhornBlocks {
  Lengths lengths;
  int64_t bq = 1, bk = 1;  // no longer than the sequence
  int64_t nq = 0, nk = 0;  // blocks
  bool has_local = false;
  int64_t rows = 0, columns = 0;
  int64_t first = 0;
  int64_t nulls = 0;   // blocks of null_k before the first one
  int64_t picks = 1;   // sorted blocks of a row; Sinkhorn's with sortcut: rows that are kept
  int64_t slots = 0;   // keys of a sorted block
  int64_t groups = 0;  // of sorted keys: those of all queries with sortcut, else of each row
  int64_t group = 1;   // queries that see the keys of a group

  int64_t SortedKeys() const { return groups * picks * slots; }
  // Rows of the last key block, if it is cut and may be chosen; else 0.
  int64_t CutRows() const { return columns == nk ? lengths.nk % bk : 0; }
  // A null block whose keys, all the same, are one key.
  bool HasOneNull() const { return nulls > 0 && columns == 0; }
};
SinkhornBlocks BlocksOf(const Lengths& lengths, const SinkhornOptions& o);

// Which of them a request has. Requests of a batch have the same.
struct SinkhornKinds {
  bool has_local = false;
  bool has_bias = false;  // a cut block or one null
};
SinkhornKinds KindsOf(const ProblemShape& p, const SinkhornOptions& o);

// What the queries see: sorted keys, then keys of their block as a second source.
SortedBlocks SeenOf(const SinkhornBlocks& blocks, const SinkhornOptions& o);

}  // namespace attnd
