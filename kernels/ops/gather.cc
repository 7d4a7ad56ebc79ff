// Ops on rows by index, and their gradient rules.
#include "kernels/ops/ops.h"

namespace attnd {

Tensor Ops::Gather(const Tensor&, const Tensor&) {
  Require(false, "gather", "is not built yet");
  return {};
}

Tensor Ops::Scatter(const Tensor&, const Tensor&, const std::vector<int64_t>&) {
  Require(false, "scatter", "is not built yet");
  return {};
}

Tensor Ops::Sort(const Tensor&, const std::vector<int64_t>&, bool) {
  Require(false, "sort", "is not built yet");
  return {};
}

Tensor Ops::TopK(const Tensor&, const std::vector<int64_t>&) {
  Require(false, "top_k", "is not built yet");
  return {};
}

}  // namespace attnd
