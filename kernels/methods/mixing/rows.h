// Rows of v as mixing methods read them, and products over the rows of a sequence.
#pragma once

#include <string>
#include <vector>

#include "kernels/method/method.h"
#include "kernels/method/seq_split.h"
#include "kernels/ops/ops.h"

namespace attnd {

// Tables of mixing methods belong to all sequences, and a gradient of one is a sum over these. So
// all sequences stay one problem, and rows beyond the lengths are replaced by zeros.
class MixedRows {
 public:
  MixedRows(Ops& ops, const Inputs& in);

  // x [B,H,N,D] with zeros in rows beyond the lengths. Where no lengths were sent, x itself.
  Tensor Clean(const Tensor& x) const;
  // y [B,H,N,D] as out: zeros beyond the lengths, in the dtype and layout of v.
  Tensor Out(const Tensor& y) const;

  // Whether Mix uses attention, which skips what a row does not see. A value that
  // is not finite in one channel may change how the others of that head round.
  bool IsSparse(bool causal) const;
  // sum over m < n_b, if causal over m <= n, of weight[h,n,m] x[b,h,m,:]; float32. weight
  // [1,H|1,N,N], x [B,H,N,C]. If sparse, rows that a row does not see are not read for it, and
  // rows beyond the lengths become zeros. is_returned: as in MatMulParams.
  Tensor Mix(const Tensor& weight, const Tensor& x, bool causal, bool is_returned = false) const;

 private:
  Ops& ops_;
  const Inputs& in_;
  const SeqSplit split_;
  const bool has_lengths_;
};

// Requests whose Mix cannot run together: attend needs one width.
std::string MixBranch(const ProblemShape& problem, bool causal);

// [B,H,N,D] -> [B,1,N,H D], heads side by side, and the reverse.
Tensor MergeHeads(Ops& ops, const Tensor& x);
Tensor SplitHeads(Ops& ops, const Tensor& x, int64_t D);

// The first Nk elements of an axis of tables, for each problem.
Tensor FirstRows(Ops& ops, const Inputs& in, const Tensor& table, int axis);

// Counts the pairs (b, h, n, m) that a row sees, in place of what primitives counted.
void CountMixedPairs(Ops& ops, const Inputs& in, bool causal);

}  // namespace attnd
