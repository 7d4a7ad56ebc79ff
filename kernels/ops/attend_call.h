// One call of Ops::Attend: its tensors, their checks and the launches. Shared by the files of
// attend.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/ops/ops.h"

namespace attnd {

struct AttendCall {
  Tensor q, k, v;
  AttendParams params;
  AttendTensors terms;  // float32 where AttendTerms says so

  // All tensors that may have a gradient, as a recorded call lists them: q, k, v, then the terms in
  // the order of AttendTermGrads.
  std::vector<Tensor> Inputs() const;
};

// Checks the contract of attend.h (INTERNAL) and converts terms to float32 where kernels need it.
// False: `ops` has failed.
bool Prepare(Ops& ops, std::span<const AttendSeqs> parts, AttendCall* call);

// One launch; nothing is recorded. `dtype` is that of out. Without `sinks` those of the call are
// left out. `kept`: AttendArgs::kept.
AttendOut LaunchAttend(Ops& ops, const AttendCall& call, const AttendSeqs& seqs, DType dtype,
                       bool sinks, std::shared_ptr<AttendKept> kept);

// The inputs of the backward of a call; an empty gradient is zero.
struct AttendFlow {
  AttendOut forward;
  Tensor dout, dlse;
  std::shared_ptr<AttendKept> kept;  // of the forward's launch
};

// One launch. Gradients in the order of AttendCall::Inputs, empty where not wanted: those of q, k,
// v, k2, v2 and q_rel in the input's layout and dtype or, with `wide`, in float32; all others in
// float32, row-major. The sinks' only with `sinks`.
std::vector<Tensor> LaunchAttendGrad(Ops& ops, const AttendCall& call, const AttendSeqs& seqs,
                                     const AttendFlow& flow, const std::vector<bool>& wanted,
                                     bool sinks, bool wide);

}  // namespace attnd
