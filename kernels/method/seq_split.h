// The sequences of a batch as problems of their own, cut to their lengths, and joined again.
#pragma once

#include <vector>

#include "kernels/method/method.h"
#include "kernels/method/seq_groups.h"
#include "kernels/ops/ops.h"

namespace attnd {

// The query rows of a sequence where q_lengths was not sent: all, or those of OfSameTokens.
enum class QueryRows : uint8_t { kAll, kLikeKeys };

// Rows beyond the lengths may hold NaN: a formula that mixes rows takes these problems in place of
// those of `in`. Where no problem has lengths every tensor stays as it is and nothing is copied.
class SeqSplit {
 public:
  // One problem for each run of neighbours of equal lengths. On a dry stream one entry stands for
  // `count` equal sequences in any order, at most `most` entries a problem.
  SeqSplit(Ops& ops, const Inputs& in, size_t most = kPlannedProblems,
           QueryRows query_rows = QueryRows::kAll);

  struct Part {
    size_t problem;  // of Inputs::problems
    Lengths lengths;
    int64_t count;      // sequences
    int64_t mem, cmem;  // as in SeqGroup
  };
  const std::vector<Part>& parts() const { return parts_; }
  // parts() by problem, as Ops::SplitBatch takes it.
  const SeqCounts& counts() const { return counts_; }
  // Whether the parts are problems of their own; else they are the problems of `in`.
  bool is_split() const { return is_split_; }

  // An empty tensor stays empty. x [B,..] with rows on axis 2, or 1 where its rank is 2.
  Tensor Queries(const Tensor& x) const;  // cut to q_lengths
  Tensor Keys(const Tensor& x) const;     // cut to kv_lengths
  Tensor Whole(const Tensor& x) const;    // not cut, e.g. a state
  // The last rows of a memory [B,Hkv,M,..]: the oldest of a shorter one do not count.
  Tensor Memory(const Tensor& x, int64_t Part::*rows) const;
  // x without an axis of sequences, which all share: each part sees [1,..]. Its gradient is summed.
  Tensor Shared(const Tensor& x) const;

  // One entry a problem of `in`, of these shapes; `fill` beyond the lengths.
  Tensor Join(const Tensor& x, const std::vector<Shape>& shapes, float fill = 0) const;
  // The same for out [B,H,Nq,last] in the dtype and layout of v, and lse [B,H,Nq], with -inf.
  Tensor JoinOut(const Tensor& x, int64_t last) const;
  Tensor JoinLse(const Tensor& x) const;

 private:
  std::vector<std::vector<int64_t>> RowsOf(const Tensor& x, int64_t Lengths::*rows) const;

  Ops& ops_;
  const Inputs& in_;
  bool is_split_ = false;
  std::vector<Part> parts_;
  SeqCounts counts_;
};

// `count` sequences that see the same: copies of `seq` or, on a dry stream, one that stands for
// them.
void AddSeqs(Ops& ops, AttendSeq seq, int64_t count, std::vector<AttendSeq>* seqs);

}  // namespace attnd
