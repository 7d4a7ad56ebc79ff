// The engine that computes a graph of cuDNN's.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cuda/cudnn_api.h"
#include "kernels/cuda/cudnn_descriptor.h"

namespace attnd::cuda::dnn {

struct ChosenPlan {
  std::unique_ptr<Descriptor> configuration, plan;  // null: there is none
  int64_t workspace_bytes = 0;
};
struct PlanLimits {
  bool may_vary = false;  // false: the same bits at every call
  int64_t workspace_bytes = 0;
};
// The fastest configuration, by the library's own prediction, within limits. It reads `graph` as
// long as it lives.
ChosenPlan ChoosePlan(const Functions& functions, cudnnHandle_t handle, const Descriptor& graph,
                      const PlanLimits& limits);

}  // namespace attnd::cuda::dnn
