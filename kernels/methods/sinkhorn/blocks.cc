#include "kernels/methods/sinkhorn/blocks.h"

#include <algorithm>

#include "kernels/core/integer.h"
#include "kernels/method/seq_groups.h"

namespace attnd {

SinkhornBlocks BlocksOf(const Lengths& n, const SinkhornOptions& o) {
  // Blocks of a causal sequence are those of its positions.
  const int64_t most = std::max(n.nq, n.nk);
  SinkhornBlocks of{.lengths = n,
                    .bq = std::clamp<int64_t>(o.causal ? most : n.nq, 1, o.block_size),
                    .bk = std::clamp<int64_t>(o.causal ? most : n.nk, 1, o.KvBlock())};
  of.nq = CeilDiv(n.nq, of.bq);
  of.nk = CeilDiv(n.nk, of.bk);
  of.has_local = o.Local() && (o.causal || of.nq == of.nk);
  of.slots = of.bk;
  of.rows = of.nq;
  of.columns = of.nk;
  of.group = of.bq;
  if (o.causal) {
    of.columns = std::min(of.nk, std::max<int64_t>(of.nq - 1, 0));
    if (o.IsTopK()) {
      of.nulls = of.picks = o.Top();
      if (of.columns == 0) of.slots = 1;
    } else {
      // The first block of queries has none before it.
      of.first = std::min<int64_t>(of.nq, 1);
      of.rows = of.nq - of.first;
    }
  } else if (o.IsTopK()) {
    of.picks = std::min(o.Top(), of.nk);
    if (o.sortcut > 0) of.rows = std::min<int64_t>(of.nq, 1);
  } else if (o.sortcut > 0) {
    of.picks = std::min(o.Top(), of.nq);
  }
  const bool is_local_alone = !o.causal && of.has_local && of.nq <= 1 && of.nk <= 1;
  if (is_local_alone || of.columns + of.nulls == 0) of.rows = of.first = 0;
  if (of.rows == 0) of.columns = of.picks = 0;
  of.groups = of.rows;
  if (o.sortcut > 0) {
    of.groups = std::min<int64_t>(of.rows, 1);
    of.group = std::max<int64_t>(n.nq, 1);
  }
  return of;
}

SinkhornKinds KindsOf(const ProblemShape& p, const SinkhornOptions& o) {
  const bool has_lengths = HasLengths(p);
  SinkhornKinds kinds;
  for (int64_t b = 0; b < (has_lengths ? p.B : 1); ++b) {
    const Lengths sent = {p.Int("q_lengths", b, p.Nq), p.Int("kv_lengths", b, p.Nk)};
    const SinkhornBlocks of = BlocksOf(OfSameTokens(p, sent), o);
    kinds.has_local = kinds.has_local || of.has_local;
    kinds.has_bias = kinds.has_bias || of.CutRows() > 0 || of.HasOneNull();
  }
  return kinds;
}

SortedBlocks SeenOf(const SinkhornBlocks& of, const SinkhornOptions& o) {
  return {.lengths = of.lengths,
          .keys = of.SortedKeys(),
          .group = of.group,
          .width = of.picks * of.slots,
          .first = of.first,
          .bq = of.bq,
          .bk = of.bk,
          .has_local = of.has_local,
          .causal = o.causal};
}

}  // namespace attnd
