// attn.v1.AttentionService: which method is answered by what.
#pragma once

#include <string>
#include <vector>

#include "server/reply.h"
#include "server/tensor_call.h"
#include "server/transport.h"

namespace attnd {

constexpr char kServiceName[] = "attn.v1.AttentionService";

// Forward and Backward go through the queue; the cheap calls (ListMethods, Estimate, ServerInfo)
// are answered on the polling thread. The bidirectional `Run` finds its place beside them: a
// Handler that reads again after each message and answers with Rpc::Send.
class Service {
 public:
  // `facts`: what ServerInfo tells, without the uptime. `tensors` outlives the service, the
  // service outlives the transport.
  Service(TensorContext* tensors, ServerFacts facts);

  void AddMethods(MethodTable* table) const;

 private:
  attn::v1::ServerInfoReply Info() const;

  TensorContext* const tensors_;
  const ServerFacts facts_;
  const TimePoint started_;
};

}  // namespace attnd
