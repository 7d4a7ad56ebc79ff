// The directions w of random features cos(w.x), exp(w.x), ..: the rows of the tensor omega, sent as
// [m,D] or [Hkv,m,D], or drawn.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/core/random_table.h"
#include "kernels/core/status.h"
#include "kernels/method/info.h"
#include "kernels/method/method.h"
#include "kernels/method/problem.h"

namespace attnd {

TensorInfo OmegaInput(std::string help);

struct OmegaOptions {
  std::optional<int64_t> num_features;  // m of a drawn omega
  int64_t usual_features = 0;           // m where num_features is unset
  bool per_head = false;                // draw [Hkv,m,D] instead of [m,D]
  DrawParams draw;
};

// m: that of omega where it was sent.
int64_t FeaturesOf(const ProblemShape& problem, const OmegaOptions& o);
void CheckOmega(const ProblemShape& problem, const OmegaOptions& o, Reasons* reasons);

// omega of every problem as it was sent or drawn, [Hkv|1,m,D] float32 with contiguous rows:
// sequences that share one copy (SeqSplit::Shared) have it packed once.
Tensor Omega(Ops& ops, const Inputs& in, const OmegaOptions& o);

}  // namespace attnd
