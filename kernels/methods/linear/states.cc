#include "kernels/methods/linear/states.h"

#include <utility>

#include "kernels/method/common_inputs.h"
#include "kernels/method/shape_rules.h"
#include "kernels/method/tensors.h"

namespace attnd {

std::vector<TensorInfo> StateInputs() {
  return {Differentiable("state_s", kStateS, "state to start from; zeros when absent", "float32"),
          Differentiable("state_z", kStateZ, "its sum of features", "float32")};
}

std::vector<TensorInfo> StateOutputs() {
  return {{"state_s", kStateS, "float32", "with return_state"},
          {"state_z", kStateZ, "float32", "with return_state"}};
}

void CheckReturnState(const StateOptions& o, Reasons* reasons) {
  if (o.return_state && !o.causal) {
    reasons->Invalid("return_state needs causal, got causal = false");
  }
}

void CheckSentStates(const ProblemShape& p, const StateOptions& o, Reasons* reasons) {
  CheckSize(p, "state_s", kStateS, {"F", o.features}, reasons);
  CheckSize(p, "state_z", kStateZ, {"F", o.features}, reasons);
}

void CheckStateGradients(const ProblemShape& p, const StateOptions& o, Reasons* reasons) {
  for (const auto& [name, shape] :
       {std::pair("grad_state_s", kStateS), std::pair("grad_state_z", kStateZ)}) {
    if (p.Find(name) == nullptr) continue;
    if (!o.return_state) {
      reasons->Invalid(name, " needs return_state, got return_state = false");
    }
    CheckSize(p, name, shape, {"F", o.features}, reasons);
  }
}

ScanTensors StatesOf(const Inputs& in, bool return_state) {
  return {.s0 = Sent(in, "state_s"), .z0 = Sent(in, "state_z"), .final_state = return_state};
}

ScanTensors StatesOf(const Inputs& in, bool return_state, const ScanSplit& split) {
  ScanTensors states = StatesOf(in, return_state);
  states.s0 = split.Whole(states.s0);
  states.z0 = split.Whole(states.z0);
  return states;
}

std::map<std::string, Tensor> StateResults(const ScanOut& scanned, bool return_state) {
  if (!return_state) return {};
  return {{"state_s", scanned.s_out}, {"state_z", scanned.z_out}};
}

}  // namespace attnd
