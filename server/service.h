// attn.v1.AttentionService: the handlers of its methods.
#pragma once

#include <string>
#include <vector>

#include "server/reply.h"
#include "server/run_call.h"
#include "server/tensor_context.h"
#include "server/transport.h"

namespace attnd {

constexpr char kServiceName[] = "attn.v1.AttentionService";

// Forward, Backward and Run go through the queue; the cheap calls (ListMethods, Estimate,
// ServerInfo) are answered on the polling thread.
class Service {
 public:
  // `facts`: the reply of ServerInfo without the uptime. `tensors` outlives the service, the
  // service outlives the transport.
  Service(TensorContext* tensors, ServerFacts facts);

  void AddMethods(MethodTable* table);

  // The open streams of Run.
  Runs& runs() { return runs_; }

 private:
  attn::v1::ServerInfoReply Info() const;

  TensorContext* const tensors_;
  const ServerFacts facts_;
  const TimePoint started_;
  Runs runs_;
};

}  // namespace attnd
