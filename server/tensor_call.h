// The unary calls Forward and Backward.
#pragma once

#include <memory>

#include "server/rpc.h"
#include "server/tensor_context.h"

namespace attnd {

std::unique_ptr<Handler> NewTensorCall(TensorContext* context, Direction direction);

}  // namespace attnd
