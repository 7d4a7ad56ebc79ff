// Linear and random mixing (Lee-Thorp et al. 2021, section 4): one matrix over positions, one over
// channels,
//   Y[n,c] = sum_{m < n_b} sum_{c'} seq_kernel[n,m] X[m,c'] hidden_kernel[c',c]
// with X the heads of v side by side (merged) or each head alone (per_head). causal: only m <= n.
#pragma once

#include <string>
#include <vector>

#include "kernels/core/random_table.h"
#include "kernels/method/method.h"

namespace attnd {

enum class HiddenScope : uint8_t { kMerged, kPerHead };

struct DenseOptions {
  bool mix_hidden = true;
  HiddenScope hidden_scope = HiddenScope::kMerged;
  bool causal = false;
  uint64_t seed = 0;
};

class DenseMixing : public MethodOf<DenseOptions> {
 protected:
  // `id`, `summary` and `reference` of the method; `learned`: whether the matrices have gradients.
  DenseMixing(MethodInfo info, bool learned);

  // How a matrix with `fan_in` rows is drawn.
  virtual DrawParams Drawn(double fan_in) const = 0;

  void CheckProblem(const ProblemShape& p, const DenseOptions& o, Reasons* reasons) const final;
  std::string BranchOf(const ProblemShape& p, const DenseOptions& o) const final;
  Outputs Formula(Ops& ops, const Inputs& in, const DenseOptions& o) const final;

 private:
  DrawParams Named(std::string name, int64_t fan_in, uint64_t seed) const;
  // [1,1|H,N,N] and, of the heads that are mixed, [1,1|H,C,C].
  Tensor SeqKernel(Ops& ops, const Inputs& in, const DenseOptions& o) const;
  Tensor HiddenKernel(Ops& ops, const Inputs& in, const DenseOptions& o) const;
};

}  // namespace attnd
