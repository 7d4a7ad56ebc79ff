// The sequences of a batch as a scan takes them: whole tensors, or problems cut to their lengths.
#pragma once

#include <vector>

#include "kernels/method/seq_split.h"
#include "kernels/ops/ops.h"

namespace attnd {

// Sequences of the whole q, k and v of `in`, for features that a scan computes itself: it reads no
// row beyond the lengths. Causal: query i sees keys j <= i + Nk - Nq.
ScanSeqs WholeScanSeqs(Ops& ops, const Inputs& in, bool causal);

// The same for composed features: what a feature map makes of padding, and its gradient there, must
// not be used.
class ScanSplit : public SeqSplit {
 public:
  ScanSplit(Ops& ops, const Inputs& in, bool causal);

  // One list for each of parts().
  const ScanSeqs& seqs() const { return seqs_; }
  // state_s [B,Hkv,F,Dv] and state_z [B,Hkv,F] of a scan, one entry a problem of `in` again.
  Tensor JoinState(const Tensor& state) const;

 private:
  const Inputs& in_;
  ScanSeqs seqs_;
};

}  // namespace attnd
