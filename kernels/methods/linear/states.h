// The state of linear attention as input and output: S [F,Dv] and z [F] of each kv head.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "kernels/method/info.h"
#include "kernels/method/problem.h"
#include "kernels/methods/linear/scan_split.h"

namespace attnd {

inline constexpr char kStateS[] = "[B,Hkv,F,Dv]", kStateZ[] = "[B,Hkv,F]";

// state_s and state_z as inputs and, with return_state, as outputs.
std::vector<TensorInfo> StateInputs();
std::vector<TensorInfo> StateOutputs();

struct StateOptions {
  bool causal = false;
  bool return_state = false;
  int64_t features = 0;  // F
};
// return_state needs causal, gradients of states need return_state, and all states have F features.
void CheckReturnState(const StateOptions& o, Reasons* reasons);
void CheckSentStates(const ProblemShape& p, const StateOptions& o, Reasons* reasons);
void CheckStateGradients(const ProblemShape& p, const StateOptions& o, Reasons* reasons);

// What a scan starts from, of the whole tensors or of each part.
ScanTensors StatesOf(const Inputs& in, bool return_state);
ScanTensors StatesOf(const Inputs& in, bool return_state, const ScanSplit& split);

// The outputs state_s and state_z; none unless return_state.
std::map<std::string, Tensor> StateResults(const ScanOut& scanned, bool return_state);

}  // namespace attnd
