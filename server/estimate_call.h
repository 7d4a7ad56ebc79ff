// The unary call Estimate.
#pragma once

#include <memory>

#include "server/rpc.h"
#include "server/tensor_context.h"

namespace attnd {

// Answered at once, or on the planner's thread if the plan takes long.
std::unique_ptr<Handler> NewEstimateCall(TensorContext* context);

}  // namespace attnd
