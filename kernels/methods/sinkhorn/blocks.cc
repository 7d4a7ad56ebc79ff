#include "kernels/methods/sinkhorn/blocks.h"

#include <algorithm>

#include "kernels/core/integer.h"

namespace attnd {
namespace {

// Lengths of queries of a request that sends those of its keys alone.
const View* LengthsOfQueries(const ProblemShape& p) {
  const View* sent = p.Find("q_lengths");
  return sent == nullptr && p.Nq == p.Nk ? p.Find("kv_lengths") : sent;
}

}  // namespace

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
  of.groups = of.rows;
  if (o.sortcut > 0) {
    of.groups = std::min<int64_t>(of.rows, 1);
    of.group = std::max<int64_t>(n.nq, 1);
  }
  return of;
}

SinkhornKinds KindsOf(const ProblemShape& p, const SinkhornOptions& o) {
  const View *of_queries = LengthsOfQueries(p), *of_keys = p.Find("kv_lengths");
  const auto at = [](const View* view, int64_t b, int64_t absent) {
    return view == nullptr || view->data == nullptr ? absent : IntAt(*view, b);
  };
  const bool has_lengths = of_queries != nullptr || of_keys != nullptr;
  SinkhornKinds kinds;
  for (int64_t b = 0; b < (has_lengths ? p.B : 1); ++b) {
    const SinkhornBlocks of = BlocksOf({at(of_queries, b, p.Nq), at(of_keys, b, p.Nk)}, o);
    kinds.has_local = kinds.has_local || of.has_local;
    kinds.has_bias = kinds.has_bias || of.CutRows() > 0 || of.HasOneNull();
  }
  return kinds;
}

SelfLengths::SelfLengths(const Inputs& in) : inputs_(in) {
  tensors_.reserve(in.problems.size());
  for (const ProblemShape& p : in.problems) {
    const View* lengths = LengthsOfQueries(p);
    tensors_.push_back(*p.tensors);
    if (lengths != nullptr) tensors_.back().insert_or_assign("q_lengths", *lengths);
    problems_.push_back(p);
    problems_.back().tensors = &tensors_.back();
  }
  inputs_.problems = problems_;
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
