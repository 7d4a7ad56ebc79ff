// A task of a running batch: for lane*.cc.
#pragma once

#include <memory>
#include <vector>

#include "server/lane.h"

namespace attnd {

// A task and, once gathered, its tensors where the engine wants them.
struct Lane::Gathered {
  std::unique_ptr<Task> task;
  Phases phases;
  Problem problem;
  std::vector<std::shared_ptr<Buffer>> inputs;
  int64_t input_bytes = 0, host_input_bytes = 0;
};

}  // namespace attnd
